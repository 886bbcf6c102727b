//! Reads a join token: from a file, standard input, the environment, or (visible to others for a
//! moment) the command line. The crate `certs` parses tokens.

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::Context;
use ask::UsageError;

/// The variable for a token. Only the same user and root can read another process's environment.
const VARIABLE: &str = "RANKMESH_TOKEN";
/// Longer tokens are refused.
const MAX_BYTES: u64 = 4096;

/// The token given on the command line, in `file` (`-`: standard input), or else in the
/// environment.
///
/// # Errors
/// More than one is given, or the file cannot be read.
pub(super) fn token(typed: Option<String>, file: Option<&Path>) -> anyhow::Result<Option<String>> {
    match (typed, file) {
        (Some(_), Some(_)) => Err(UsageError("--token and --token-file say the same: give one".into()).into()),
        (Some(token), None) => {
            if let Err(error) = blot_out(&token) {
                tracing::debug!("the token stays visible in the process list: {error}");
            }
            Ok(Some(token))
        }
        (None, Some(file)) => {
            let mut text = String::new();
            let read = if file == Path::new("-") {
                std::io::stdin().lock().take(MAX_BYTES).read_to_string(&mut text)
            } else {
                std::fs::File::open(file).and_then(|opened| opened.take(MAX_BYTES).read_to_string(&mut text))
            };
            read.with_context(|| format!("reading the token from {}", file.display()))?;
            Ok(Some(text.trim().to_owned()))
        }
        (None, None) => Ok(std::env::var(VARIABLE).ok().filter(|token| !token.is_empty())),
    }
}

/// Overwrites the token among this process's arguments, which every user can read in
/// /proc/PID/cmdline.
fn blot_out(token: &str) -> std::io::Result<()> {
    let other = || std::io::Error::other("/proc/self/stat is not as expected");
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // proc(5): after the name in parentheses come fields 3 on; arg_start is 48, arg_end 49.
    let fields: Vec<&str> = stat.rsplit_once(')').ok_or_else(other)?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse::<u64>().ok()).ok_or_else(other);
    let (start, end) = (field(48)?, field(49)?);
    let mut memory = std::fs::OpenOptions::new().read(true).write(true).open("/proc/self/mem")?;
    let mut arguments = vec![0; usize::try_from(end.saturating_sub(start)).map_err(|_| other())?.min(1 << 21)];
    memory.seek(SeekFrom::Start(start))?;
    memory.read_exact(&mut arguments)?;
    let at = arguments.windows(token.len()).position(|window| window == token.as_bytes()).ok_or_else(other)?;
    memory.seek(SeekFrom::Start(start + at as u64))?;
    memory.write_all(&vec![b'x'; token.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_from_one_place() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, "abc\n").unwrap();
        assert_eq!(token(None, Some(&file)).unwrap().as_deref(), Some("abc"));
        assert_eq!(token(Some("typed".into()), None).unwrap().as_deref(), Some("typed"));
        assert!(token(Some("typed".into()), Some(&file)).is_err());
        let error = token(None, Some(&dir.path().join("missing"))).unwrap_err();
        assert!(error.to_string().contains("missing"), "{error}");
    }

    #[test]
    fn an_argument_can_be_blotted_out() {
        // The name of this test binary is among its arguments; a part of it is used in place of a
        // token.
        let arguments = || std::fs::read("/proc/self/cmdline").unwrap();
        let own = String::from_utf8_lossy(&arguments()).split('\0').next().unwrap().to_owned();
        let part = own[own.len() - 8..].to_owned();
        blot_out(&part).unwrap();
        assert!(!String::from_utf8_lossy(&arguments()).split('\0').next().unwrap().ends_with(&part));
        assert!(blot_out("nowhere in the arguments of this process").is_err());
    }
}
