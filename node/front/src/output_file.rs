//! The file into which a command writes: it appears when it is complete. A device, a pipe or
//! standard output (`-`) is written as it is, and a link stays: the file that it names is replaced.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use ask::UsageError;
use tempfile::NamedTempFile;

/// Links that are followed to the file that they name; as many as Linux follows.
const MOST_LINKS: usize = 40;

/// A file that is being written; without [`Self::finish`] a new one does not appear.
#[derive(Debug)]
pub struct OutputFile {
    named: PathBuf,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Stdout(io::Stdout),
    AsItIs(File),
    /// Gets its name when it is complete.
    New {
        file: NamedTempFile,
        target: PathBuf,
        may_replace: bool,
    },
}

impl OutputFile {
    /// Opens `path` for writing; `-` and `/dev/stdout` are standard output. A new file is readable by
    /// this user alone, as the stores are.
    ///
    /// # Errors
    /// It cannot be written, or nothing can be created in its directory.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        Self::open_with(path, 0o600)
    }

    /// As [`Self::open`], for a file that programs of other users read.
    ///
    /// # Errors
    /// As there.
    pub fn open_for_all(path: &Path) -> anyhow::Result<Self> {
        Self::open_with(path, 0o644)
    }

    fn open_with(path: &Path, mode: u32) -> anyhow::Result<Self> {
        let writing = || format!("writing {}", path.display());
        let place = if is_stdout(path) {
            Place::Stdout(io::stdout())
        } else {
            match std::fs::metadata(path) {
                Ok(found) if !found.is_file() || is_descriptor(path) => {
                    // (Behind what an open file has already.)
                    Place::AsItIs(OpenOptions::new().append(true).open(path).with_context(writing)?)
                }
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).with_context(writing),
                _ => {
                    let target = followed(path).with_context(writing)?;
                    let dir = target.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
                    let file = tempfile::Builder::new()
                        .prefix(".rankmesh-")
                        .permissions(Permissions::from_mode(mode))
                        .tempfile_in(dir)
                        .with_context(|| format!("writing in {}", dir.display()))?;
                    Place::New { file, target, may_replace: true }
                }
            }
        };
        Ok(Self { named: path.to_owned(), place })
    }

    /// As [`Self::open`], for a file that is not there yet.
    ///
    /// # Errors
    /// It is there ([`UsageError`]); else as there.
    pub fn open_new(path: &Path) -> anyhow::Result<Self> {
        let mut opened = Self::open(path)?;
        if let Place::New { may_replace, .. } = &mut opened.place {
            if path.symlink_metadata().is_ok() {
                return Err(UsageError(format!("{} exists: give a new file", path.display())).into());
            }
            *may_replace = false;
        }
        Ok(opened)
    }

    /// Everything was written: a new file gets its name, in place of one that is there.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish(self) -> anyhow::Result<()> {
        let Self { named, place } = self;
        let done = match place {
            Place::Stdout(mut out) => out.flush(),
            Place::AsItIs(mut file) => file.flush(),
            Place::New { file, target, may_replace } => {
                let named = if may_replace { file.persist(target) } else { file.persist_noclobber(target) };
                named.map(drop).map_err(|error| error.error)
            }
        };
        done.with_context(|| format!("writing {}", named.display()))
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.place {
            Place::Stdout(out) => out.write(bytes),
            Place::AsItIs(file) => file.write(bytes),
            Place::New { file, .. } => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.place {
            Place::Stdout(out) => out.flush(),
            Place::AsItIs(file) => file.flush(),
            Place::New { file, .. } => file.flush(),
        }
    }
}

/// Where standard output is a file, that is written on from where it stands, not replaced.
fn is_stdout(path: &Path) -> bool {
    ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"].iter().any(|name| path == Path::new(name))
}

/// Whether a path names what a process has open: that is written on, not replaced.
fn is_descriptor(path: &Path) -> bool {
    let of_process = || path.starts_with("/proc") && path.components().any(|part| part.as_os_str() == "fd");
    path.starts_with("/dev/fd") || path == Path::new("/dev/stderr") || path == Path::new("/dev/stdin") || of_process()
}

/// The file that a path names after all links; the last need not exist.
fn followed(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        match std::fs::read_link(&path) {
            // (An absolute target takes the place of the directory.)
            Ok(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("too many links"))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::{FileTypeExt, symlink};

    use super::*;

    fn written(path: &Path, text: &str) -> anyhow::Result<()> {
        let mut file = OutputFile::open(path)?;
        file.write_all(text.as_bytes())?;
        file.finish()
    }

    #[test]
    fn a_file_appears_when_it_is_complete_and_a_link_to_it_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (page, link) = (dir.path().join("page"), dir.path().join("link"));
        symlink("page", &link).unwrap();
        for text in ["first", "second"] {
            written(&link, text).unwrap();
            assert_eq!(std::fs::read_to_string(&page).unwrap(), text);
            assert_eq!(std::fs::read_link(&link).unwrap(), Path::new("page"));
        }
        let mut given_up = OutputFile::open(&page).unwrap();
        given_up.write_all(b"third").unwrap();
        drop(given_up);
        assert_eq!(std::fs::read_to_string(&page).unwrap(), "second");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
        for there in [&page, &link] {
            assert!(OutputFile::open_new(there).unwrap_err().is::<UsageError>());
        }
        OutputFile::open_new(&dir.path().join("new")).unwrap().finish().unwrap();
    }

    #[test]
    fn only_a_file_for_all_is_readable_by_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page");
        let mode = |opened: anyhow::Result<OutputFile>| {
            opened.unwrap().finish().unwrap();
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777
        };
        assert_eq!(mode(OutputFile::open(&path)), 0o600);
        assert_eq!(mode(OutputFile::open_for_all(&path)), 0o644);
    }

    #[test]
    fn what_a_process_has_open_is_written_on() {
        use std::os::fd::AsRawFd;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("all");
        std::fs::write(&path, "before ").unwrap();
        let open = std::fs::File::options().append(true).open(&path).unwrap();
        written(Path::new(&format!("/dev/fd/{}", open.as_raw_fd())), "page").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "before page");
    }

    #[test]
    fn a_device_and_a_pipe_are_written_as_they_are() {
        let full = Path::new("/dev/full");
        let refused = written(full, "page").unwrap_err();
        assert!(format!("{refused:#}").contains("No space left"), "{refused:#}");
        assert!(std::fs::metadata(full).unwrap().file_type().is_char_device());

        let dir = tempfile::tempdir().unwrap();
        let (pipe, link) = (dir.path().join("pipe"), dir.path().join("link"));
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        symlink(&pipe, &link).unwrap();
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || {
                let mut text = String::new();
                File::open(pipe).unwrap().read_to_string(&mut text).unwrap();
                text
            }
        });
        written(&link, "page").unwrap();
        assert_eq!(reader.join().unwrap(), "page");
        assert!(std::fs::metadata(&pipe).unwrap().file_type().is_fifo());
        OutputFile::open_new(full).unwrap().finish().unwrap();
    }
}
