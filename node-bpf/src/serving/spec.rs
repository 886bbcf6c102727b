//! `NAME=exe:GLOB|port:N|unit:UNIT`, as typed after `--serve`: which processes are a service's.

/// Which processes serve requests under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeRule {
    /// The service's name, equal on all hosts.
    pub name: String,
    pub(super) by: By,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum By {
    /// The executable's path, or its last component: `*` stands for any text, `?` for a character.
    Exe(String),
    /// It listens on this TCP port.
    Port(u16),
    /// A unit of systemd, with or without its ending.
    Unit(String),
}

/// The argument is no rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServeError {
    /// Not of the form.
    #[error("{typed}: not NAME=exe:GLOB, NAME=port:N or NAME=unit:UNIT, for example chat=port:8000")]
    Form {
        /// The text.
        typed: String,
    },
    /// The name cannot be one.
    #[error("{typed}: a service's name has letters, digits and . _ - (at most {LONGEST_NAME} of them)")]
    Name {
        /// The text.
        typed: String,
    },
}

const LONGEST_NAME: usize = 64;

impl ServeRule {
    /// Reads `NAME=exe:GLOB`, `NAME=port:N` or `NAME=unit:UNIT`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(typed: &str) -> Result<ServeRule, ServeError> {
        let form = || ServeError::Form { typed: typed.to_owned() };
        let (name, of) = typed.split_once('=').ok_or_else(form)?;
        let (kind, value) = of.split_once(':').filter(|(_, value)| !value.is_empty()).ok_or_else(form)?;
        let may = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(may) {
            return Err(ServeError::Name { typed: typed.to_owned() });
        }
        let by = match kind {
            "exe" => By::Exe(value.to_owned()),
            "port" => By::Port(value.parse().ok().filter(|port| *port != 0).ok_or_else(form)?),
            "unit" => By::Unit(value.to_owned()),
            _ => return Err(form()),
        };
        Ok(ServeRule { name: name.to_owned(), by })
    }
}

/// Whether a text is of a pattern. Takes time in the product of their lengths at most.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // Where to go on when what follows the last star does not fit.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&'*') {
            star = Some((p, t));
            p += 1;
        } else if pattern.get(p).is_some_and(|c| *c == '?' || *c == text[t]) {
            p += 1;
            t += 1;
        } else if let Some((at, from)) = star {
            p = at + 1;
            t = from + 1;
            star = Some((at, from + 1));
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_as_typed() {
        let by = |typed: &str| ServeRule::parse(typed).map(|rule| (rule.name, rule.by));
        assert_eq!(by("chat=port:8000"), Ok(("chat".into(), By::Port(8000))));
        assert_eq!(by("a.b=exe:/opt/*/vllm"), Ok(("a.b".into(), By::Exe("/opt/*/vllm".into()))));
        assert_eq!(by("w=unit:nginx"), Ok(("w".into(), By::Unit("nginx".into()))));
        for wrong in
            ["chat", "chat=8000", "chat=port:0", "chat=port:x", "chat=exe:", "chat=pid:7", "=port:1", "a b=port:1"]
        {
            assert!(by(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn patterns() {
        assert!(matches("*python3*", "/usr/bin/python3.11") && matches("py?hon", "python") && matches("*", ""));
        assert!(matches("/opt/*/bin/*", "/opt/a/b/bin/c") && matches("a*b*c", "aXbYbZc"));
        assert!(!matches("python", "python3") && !matches("a*b", "ac") && !matches("", "x"));
        assert!(!matches(&"a*".repeat(500), &"b".repeat(500)));
    }
}
