//! The commands of the shell, which begin with a dot. Pure: the session executes them.

use std::path::PathBuf;

use ask::output::Format;

/// A command as it is listed.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) name: &'static str,
    arguments: &'static str,
    about: &'static str,
}

/// All of them.
pub(super) const COMMANDS: [Listed; 8] = [
    Listed {
        name: ".explain",
        arguments: "[analyze] SQL",
        about: "the plan of a question; analyze runs it and says what each node shipped",
    },
    Listed { name: ".help", arguments: "", about: "this list" },
    Listed { name: ".mode", arguments: "table|csv|json|ndjson|line", about: "how answers are printed" },
    Listed { name: ".once", arguments: "FILE", about: "write the next answer's rows into a file" },
    Listed { name: ".quit", arguments: "", about: "end (as Ctrl-D does)" },
    Listed { name: ".schema", arguments: "[TABLE]", about: "what tables and columns hold, with their units" },
    Listed { name: ".tables", arguments: "[PREFIX]", about: "tables and views that can be asked for" },
    Listed {
        name: ".timer",
        arguments: "on|off",
        about: "say how long each question took, from typing to the last row",
    },
];

/// Ways of printing, by name.
pub(super) const MODES: [(&str, Format); 5] = [
    ("table", Format::Table),
    ("csv", Format::Csv),
    ("json", Format::Json),
    ("ndjson", Format::Ndjson),
    ("line", Format::Line),
];

/// A line of input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Command {
    Explain { sql: String, analyze: bool },
    Help,
    Mode(Format),
    Once(PathBuf),
    Quit,
    Schema(Option<String>),
    Tables(String),
    Timer(bool),
}

impl Command {
    /// Reads a line that begins with a dot.
    ///
    /// # Errors
    /// It is no command; what to write instead.
    pub(super) fn parse(line: &str) -> Result<Self, String> {
        let line = line.trim();
        let (name, argument) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let argument = argument.trim().trim_end_matches(';').trim_end();
        let none = |command| if argument.is_empty() { Ok(command) } else { Err(format!("{name} takes no argument")) };
        let some = || if argument.is_empty() { Err(usage(name)) } else { Ok(argument) };
        match name {
            ".explain" => {
                let sql = some()?;
                let analyzed = sql
                    .split_once(char::is_whitespace)
                    .filter(|(word, _)| word.eq_ignore_ascii_case("analyze"))
                    .map(|(_, sql)| sql.trim().to_owned());
                let analyze = analyzed.is_some();
                Ok(Self::Explain { sql: analyzed.unwrap_or_else(|| sql.to_owned()), analyze })
            }
            ".help" => none(Self::Help),
            ".mode" => {
                let mode = some()?;
                let found = MODES.iter().find(|(name, _)| *name == mode);
                found.map(|(_, format)| Self::Mode(*format)).ok_or_else(|| usage(name))
            }
            ".once" => some().map(|file| Self::Once(PathBuf::from(unquoted(file)))),
            ".quit" | ".exit" | ".q" => none(Self::Quit),
            ".schema" => Ok(Self::Schema(Some(argument.to_owned()).filter(|table| !table.is_empty()))),
            ".tables" => Ok(Self::Tables(argument.to_owned())),
            ".timer" => match some()? {
                "on" => Ok(Self::Timer(true)),
                "off" => Ok(Self::Timer(false)),
                _ => Err(usage(name)),
            },
            _ => Err(format!("{name} is no command; .help lists them")),
        }
    }
}

fn usage(name: &str) -> String {
    let arguments = COMMANDS.iter().find(|command| command.name == name).map_or("", |command| command.arguments);
    format!("write {name} {arguments}")
}

fn unquoted(file: &str) -> &str {
    let within = |quote: char| file.strip_prefix(quote).and_then(|file| file.strip_suffix(quote));
    within('"').or_else(|| within('\'')).unwrap_or(file)
}

/// The list of commands.
pub(super) fn help() -> String {
    let line = |command: &Listed| format!("{:<9} {:<28} {}\n", command.name, command.arguments, command.about);
    let commands: String = COMMANDS.iter().map(line).collect();
    format!(
        "{commands}Everything else is SQL, over as many lines as it takes, up to a semicolon. Ctrl-C stops a question.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read() {
        let explain = |sql: &str, analyze| Ok(Command::Explain { sql: sql.to_owned(), analyze });
        assert_eq!(Command::parse(".explain SELECT 1;"), explain("SELECT 1", false));
        assert_eq!(Command::parse(".explain ANALYZE  SELECT 1"), explain("SELECT 1", true));
        assert_eq!(Command::parse(" .mode line "), Ok(Command::Mode(Format::Line)));
        assert_eq!(Command::parse(".once 'a b.csv'"), Ok(Command::Once(PathBuf::from("a b.csv"))));
        assert_eq!(Command::parse(".schema"), Ok(Command::Schema(None)));
        assert_eq!(Command::parse(".schema offcpu;"), Ok(Command::Schema(Some("offcpu".to_owned()))));
        assert_eq!(Command::parse(".timer off"), Ok(Command::Timer(false)));
        assert_eq!(Command::parse(".exit"), Ok(Command::Quit));
        for wrong in [".", ".nosuch", ".mode", ".mode xml", ".timer", ".timer 1", ".once", ".quit 3", ".explain"] {
            assert!(Command::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_command_is_listed_and_read() {
        for command in COMMANDS {
            let refused = Command::parse(command.name).err().unwrap_or_default();
            assert!(!refused.contains("is no command"), "{}", command.name);
            assert!(help().contains(command.about));
        }
        insta::assert_snapshot!("shell-help", help());
    }
}
