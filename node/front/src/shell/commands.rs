//! The commands of the shell, which begin with a dot. Pure: the session executes them.

use std::path::PathBuf;

use ask::output::Format;

use crate::schema;

/// A command as it is listed.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) name: &'static str,
    arguments: &'static str,
    about: &'static str,
}

/// All of them.
pub(super) const COMMANDS: [Listed; 9] = [
    Listed {
        name: ".explain",
        arguments: "[analyze] SQL",
        about: "the plan of a question; analyze runs it and says what each node shipped",
    },
    Listed { name: ".help", arguments: "", about: "this list" },
    Listed { name: ".mode", arguments: "auto|table|csv|json|ndjson|line", about: "how answers are printed" },
    Listed { name: ".once", arguments: "FILE", about: "write the next answer's rows into a file" },
    Listed { name: ".pager", arguments: "[on|off]", about: "show long answers in $PAGER, else less" },
    Listed { name: ".quit", arguments: "", about: "end (as Ctrl-D does)" },
    Listed { name: ".schema", arguments: "[TABLE]", about: "what tables and columns hold, with their units" },
    Listed { name: ".tables", arguments: "[PREFIX]", about: "tables and views that can be asked for" },
    Listed {
        name: ".timer",
        arguments: "[on|off]",
        about: "say how long each question took, from typing to the last row",
    },
];

/// Ways of printing, by name.
pub(super) const MODES: [(&str, Format); 6] = [
    ("auto", Format::Auto),
    ("table", Format::Table),
    ("csv", Format::Csv),
    ("json", Format::Json),
    ("ndjson", Format::Ndjson),
    ("line", Format::Line),
];

/// A line of input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Command {
    Explain {
        sql: String,
        analyze: bool,
    },
    Help,
    Mode(Format),
    Once(PathBuf),
    /// On or off; the other where nothing is said.
    Pager(Option<bool>),
    Quit,
    Schema(Option<String>),
    Tables(String),
    /// On or off; the other where nothing is said.
    Timer(Option<bool>),
    /// A line a value (on), a table (off), or by the width; the other where nothing is said.
    Expanded(Option<Format>),
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
        let switch = || match argument {
            "" => Ok(None),
            "on" => Ok(Some(true)),
            "off" => Ok(Some(false)),
            _ => Err(usage(name)),
        };
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
            ".timer" => switch().map(Self::Timer),
            ".pager" => switch().map(Self::Pager),
            "\\x" => match argument {
                "" => Ok(Self::Expanded(None)),
                "on" => Ok(Self::Expanded(Some(Format::Line))),
                "off" => Ok(Self::Expanded(Some(Format::Table))),
                "auto" => Ok(Self::Expanded(Some(Format::Auto))),
                _ => Err("write \\x, \\x on, \\x off or \\x auto".to_owned()),
            },
            _ => Err(format!("{name} is no command; .help lists them")),
        }
    }
}

/// A line as a command, also as psql and other clients write it; none where it is SQL.
pub(super) fn of_line(line: &str) -> Option<String> {
    let plain = line.trim().trim_end_matches(';').trim_end();
    if plain.starts_with('.') {
        return Some(line.to_owned());
    }
    let words: Vec<String> = plain.split_whitespace().map(str::to_ascii_lowercase).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let last = plain.split_whitespace().last().unwrap_or_default();
    Some(match words[..] {
        ["exit" | "quit" | "\\q"] => ".quit".to_owned(),
        ["help" | "\\?" | "\\h"] => ".help".to_owned(),
        ["\\d" | "\\d+" | "\\dt" | "\\dt+" | "\\dv" | "\\dv+"] | ["show", "tables"] => ".tables".to_owned(),
        ["\\d" | "\\d+" | "describe" | "desc", _] | ["describe" | "desc", "table", _] => format!(".schema {last}"),
        ["\\pset", "pager", ref state @ ..] => format!(".pager {}", state.join(" ")),
        ["\\timing", ref state @ ..] => format!(".timer {}", state.join(" ")),
        [word, ..] if word.starts_with('\\') => plain.to_owned(),
        _ => return None,
    })
}

/// What to say of a line within a statement that reads as a command: it is part of the statement.
pub(super) fn hint(line: &str) -> Option<String> {
    let typed = line.trim();
    let is_word = ["exit", "quit", "help"].iter().any(|word| typed.eq_ignore_ascii_case(word));
    let mut chars = typed.chars();
    let begins = chars.next().is_some_and(|first| matches!(first, '.' | '\\'));
    let is_command = is_word || (begins && chars.next().is_some_and(|next| next.is_ascii_alphabetic() || next == '?'));
    is_command.then(|| {
        format!(
            "{} was taken as a line of the statement that is not finished: end that with ;\nor drop it with Ctrl-C, then {0}",
            ask::output::printable(typed.split_whitespace().next().unwrap_or_default())
        )
    })
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
    let line = |command: &Listed| {
        let typed = format!("{} {}", command.name, command.arguments);
        schema::wrapped(&format!("{typed:<24} "), command.about, 25)
    };
    let commands: String = COMMANDS.iter().map(line).collect();
    format!(
        "{commands}Also \\d, \\dt, \\x, \\timing, \\q, exit and show tables. Everything else is SQL,\n\
         over as many lines as it takes, up to a semicolon. Ctrl-C stops a question.\n"
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
        assert_eq!(Command::parse(".timer off"), Ok(Command::Timer(Some(false))));
        assert_eq!(Command::parse("\\x auto"), Ok(Command::Expanded(Some(Format::Auto))));
        assert_eq!(Command::parse(".exit"), Ok(Command::Quit));
        for wrong in
            [".", ".nosuch", ".mode", ".mode xml", ".timer 1", "\\x 1", "\\nosuch", ".once", ".quit 3", ".explain"]
        {
            assert!(Command::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn other_clients_words_are_commands_and_sql_is_none() {
        let of = |line: &str| of_line(line).map(|line| Command::parse(&line));
        for line in ["exit", "QUIT;", "\\q", ".quit"] {
            assert_eq!(of(line), Some(Ok(Command::Quit)), "{line}");
        }
        for line in ["\\dt", "\\d", "show tables;", "SHOW TABLES"] {
            assert_eq!(of(line), Some(Ok(Command::Tables(String::new()))), "{line}");
        }
        for line in ["\\d collectives", "DESCRIBE collectives;", "desc table collectives"] {
            assert_eq!(of(line), Some(Ok(Command::Schema(Some("collectives".to_owned())))), "{line}");
        }
        assert_eq!(of("\\timing"), Some(Ok(Command::Timer(None))));
        assert_eq!(of("\\pset pager off"), Some(Ok(Command::Pager(Some(false)))));
        assert_eq!(of("\\x"), Some(Ok(Command::Expanded(None))));
        assert!(of("\\copy x").is_some_and(|read| read.is_err()));
        for line in ["SELECT 1;", "", "helpful", "show me", "explain SELECT 1", "exit 1", "-- .quit"] {
            assert_eq!(of(line), None, "{line}");
        }
    }

    #[test]
    fn a_command_within_a_statement_gets_a_hint() {
        for line in ["quit", " EXIT ", "help", "\\d", "\\x", "\\?", ".tables", ".once a.csv"] {
            assert!(hint(line).is_some_and(|hint| hint.contains("Ctrl-C")), "{line}");
        }
        for line in ["FROM collectives", ".5", "quit;x", "helpful", "", "desc", "'.quit'"] {
            assert_eq!(hint(line), None, "{line}");
        }
    }

    #[test]
    fn every_command_is_listed_and_read() {
        for command in COMMANDS {
            let refused = Command::parse(command.name).err().unwrap_or_default();
            assert!(!refused.contains("is no command"), "{}", command.name);
            let unbroken = help().split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(unbroken.contains(command.about), "{unbroken}");
        }
        assert!(help().lines().all(|line| line.chars().count() <= 80), "{}", help());
        insta::assert_snapshot!("shell-help", help());
    }
}
