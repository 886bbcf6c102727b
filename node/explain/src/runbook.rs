//! What to do about a cause: one runbook for each kind, written in docs/runbooks/ and built in.
//!
//! Commands in runbooks refer to their object by shell variables (`"$PID"`), so that a page is
//! readable and runnable as it is. [`filled`] inserts real values. Values come from processes of
//! other people: one that a shell could take for anything but a plain word is never put into a
//! command, but assigned to the variable before it, quoted.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use record::for_shell;

/// Every kind with its page, in the order in which they are listed.
pub const RUNBOOKS: [(&str, &str); 24] = [
    ("communication", include_str!("../../../docs/runbooks/communication.md")),
    ("stopped", include_str!("../../../docs/runbooks/stopped.md")),
    ("cpu_throttled", include_str!("../../../docs/runbooks/cpu_throttled.md")),
    ("cpu_stolen", include_str!("../../../docs/runbooks/cpu_stolen.md")),
    ("reclaim", include_str!("../../../docs/runbooks/reclaim.md")),
    ("page_fault", include_str!("../../../docs/runbooks/page_fault.md")),
    ("block_io", include_str!("../../../docs/runbooks/block_io.md")),
    ("gpu_throttled", include_str!("../../../docs/runbooks/gpu_throttled.md")),
    ("cuda_sync", include_str!("../../../docs/runbooks/cuda_sync.md")),
    ("cuda_copy", include_str!("../../../docs/runbooks/cuda_copy.md")),
    ("cuda_launch", include_str!("../../../docs/runbooks/cuda_launch.md")),
    ("lock", include_str!("../../../docs/runbooks/lock.md")),
    ("network_wait", include_str!("../../../docs/runbooks/network_wait.md")),
    ("file_wait", include_str!("../../../docs/runbooks/file_wait.md")),
    ("sleep", include_str!("../../../docs/runbooks/sleep.md")),
    ("wait", include_str!("../../../docs/runbooks/wait.md")),
    ("unattributed", include_str!("../../../docs/runbooks/unattributed.md")),
    ("hang", include_str!("../../../docs/runbooks/hang.md")),
    ("network", include_str!("../../../docs/runbooks/network.md")),
    ("stage_imbalance", include_str!("../../../docs/runbooks/stage_imbalance.md")),
    ("data_imbalance", include_str!("../../../docs/runbooks/data_imbalance.md")),
    ("work_imbalance", include_str!("../../../docs/runbooks/work_imbalance.md")),
    ("whole_job", include_str!("../../../docs/runbooks/whole_job.md")),
    ("tail", include_str!("../../../docs/runbooks/tail.md")),
];

/// The variables that commands may use, with their meanings.
pub const VARIABLES: [(&str, &str); 10] = [
    ("PID", "process id of the rank"),
    ("RANK", "its rank"),
    ("NODE", "its host"),
    ("CPU", "the CPU it ran on"),
    ("CGROUP", "its cgroup, below /sys/fs/cgroup"),
    ("DEVICE", "block device, such as sda"),
    ("OTHER", "process id of the task that is in its way"),
    ("GPU", "index of its GPU"),
    ("WATT", "power limit in watts"),
    ("SERVICE", "a service's name, as rankmesh tail prints it"),
];

/// The page of a kind; none where there is no such kind.
#[must_use]
pub fn page(kind: &str) -> Option<&'static str> {
    RUNBOOKS.iter().find(|(name, _)| *name == kind).map(|(_, page)| *page)
}

/// Known values, by the names of [`VARIABLES`].
pub type Values = BTreeMap<String, String>;

/// A page with values in its text and its commands. Above a command with an unknown value, a line
/// lists what is to be filled in.
#[must_use]
pub fn filled(page: &str, values: &Values) -> String {
    let mut out = String::with_capacity(page.len());
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if line.trim_end() == "```sh" {
            let block: Vec<&str> = lines.by_ref().take_while(|line| line.trim_end() != "```").collect();
            let _ = write!(out, "```sh\n{}```\n", commands(&block.join("\n"), values));
        } else {
            out.push_str(&put(line, values));
            out.push('\n');
        }
    }
    out
}

/// The commands of a page, filled; without the text around them.
#[must_use]
pub fn only_commands(page: &str, section: &str, values: &Values) -> String {
    let wanted = format!("## {section}");
    let lines = page.lines().skip_while(|line| line.trim_end() != wanted).skip(1);
    let lines: Vec<&str> = lines.take_while(|line| !line.starts_with("## ")).collect();
    let mut found = Vec::new();
    let mut inside = false;
    for line in lines {
        match line.trim_end() {
            "```sh" => inside = true,
            "```" => inside = false,
            _ if inside => found.push(line),
            _ => {}
        }
    }
    if found.is_empty() { String::new() } else { commands(&found.join("\n"), values) }
}

/// Commands with values; ends with a newline.
fn commands(block: &str, values: &Values) -> String {
    let mut out = String::new();
    for (name, what) in VARIABLES.iter().filter(|(name, _)| uses(block, name)) {
        match values.get(*name) {
            Some(value) if is_plain(value) => {}
            Some(value) if value.chars().all(|c| !c.is_control()) => {
                let _ = writeln!(out, "{name}={}", for_shell(value));
            }
            _ => {
                let _ = writeln!(out, "{name}=  # fill in: {what}");
            }
        }
    }
    let plain: Values =
        values.iter().filter(|(_, value)| is_plain(value)).map(|(name, value)| (name.clone(), value.clone())).collect();
    out.push_str(&put(block, &plain));
    out.push('\n');
    out
}

/// Whether a text is one plain word to a shell, wherever it stands, and no option.
fn is_plain(value: &str) -> bool {
    let safe = |c: char| c.is_ascii_alphanumeric() || "_./:@%+-".contains(c);
    !value.is_empty() && !value.starts_with('-') && value.len() <= 512 && value.chars().all(safe)
}

fn uses(text: &str, name: &str) -> bool {
    let variable = format!("${name}");
    text.match_indices(&variable).any(|(at, _)| ends_name(&text[at + variable.len()..]))
}

fn ends_name(rest: &str) -> bool {
    !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
}

/// Values in place of their variables, with or without quotes around these.
fn put<'t>(text: &'t str, values: &Values) -> Cow<'t, str> {
    let mut text = Cow::Borrowed(text);
    for (name, value) in values {
        let value: String = value.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        text = text.replace(&format!("\"${name}\""), &value).into();
        let variable = format!("${name}");
        let mut out = String::new();
        let mut rest: &str = &text;
        while let Some(at) = rest.find(&variable) {
            let after = &rest[at + variable.len()..];
            out.push_str(&rest[..at]);
            out.push_str(if ends_name(after) { &value } else { &variable });
            rest = after;
        }
        out.push_str(rest);
        text = out.into();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    fn shell(arguments: &[&str], script: &str, dir: &std::path::Path) -> std::process::Output {
        let mut shell = Command::new("/bin/sh")
            .args(arguments)
            .current_dir(dir)
            .env("PATH", "/nowhere")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        shell.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        shell.wait_with_output().unwrap()
    }

    fn all_of(value: &str) -> Values {
        VARIABLES.iter().map(|(name, _)| ((*name).to_owned(), value.to_owned())).collect()
    }

    fn all_commands(page: &str, values: &Values) -> String {
        ["Check", "Fix", "Verify"].map(|section| only_commands(page, section, values)).concat()
    }

    #[test]
    fn every_page_says_what_to_check_to_mend_and_to_verify_in_commands_that_parse() {
        let dir = tempfile::tempdir().unwrap();
        for (kind, page) in RUNBOOKS {
            let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
            assert_eq!(sections, ["Check", "Fix", "Verify"], "{kind}");
            assert!(page.starts_with("# "), "{kind} has a title");
            for section in ["Check", "Verify"] {
                assert!(!only_commands(page, section, &Values::new()).is_empty(), "{kind}: no command to {section}");
            }
            for values in [Values::new(), all_of("4711"), all_of("it's; $(odd) \"name\"")] {
                let script = all_commands(page, &values);
                let parsed = shell(&["-n"], &script, dir.path());
                assert!(parsed.status.success(), "{kind}: {}\n{script}", String::from_utf8_lossy(&parsed.stderr));
            }
            // Every variable is one that can be filled in.
            let known = all_commands(page, &all_of("4711"));
            assert!(!known.contains("\"$") && !known.contains("'$"), "{kind} names an unknown variable:\n{known}");
        }
    }

    #[test]
    fn what_a_process_is_called_never_runs() {
        let dir = tempfile::tempdir().unwrap();
        for value in ["x; :>made", "$(:>made)", "`:>made`", "'; :>made; '", "\"; :>made; \"", "a\n:>made\n", "-x"] {
            for (kind, page) in RUNBOOKS {
                let script = all_commands(page, &all_of(value));
                shell(&[], &script, dir.path());
                assert!(!dir.path().join("made").exists(), "{kind}: {value:?} ran:\n{script}");
                assert!(!filled(page, &all_of(value)).contains("\n:>made"), "{kind}");
            }
        }
    }

    #[test]
    fn known_values_stand_in_the_commands_and_unknown_ones_are_asked_for() {
        let values: Values = [("OTHER".to_owned(), "812".to_owned())].into();
        let page = page("cpu_stolen").unwrap();
        let check = only_commands(page, "Check", &values);
        assert!(
            check.contains("-p 812\n") && check.starts_with("PID=  # fill in: process id of the rank\n"),
            "{check}"
        );
        let odd: Values = [("CGROUP".to_owned(), "a b".to_owned())].into();
        let throttled = only_commands(self::page("cpu_throttled").unwrap(), "Check", &odd);
        assert!(throttled.starts_with("CGROUP='a b'\ncat /sys/fs/cgroup/\"$CGROUP\"/cpu.max\n"), "{throttled}");
    }
}
