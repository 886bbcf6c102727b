//! `rankmesh check` for people: the verdict, the findings, what is recorded, the libraries in use,
//! what to do. Lines have 80 columns, but for paths and for what is to be copied.

use std::fmt::Write;

use ask::output::{printable, render};

use super::model::{Report, State};

/// The report as text, ending in a newline.
pub(super) fn text(report: &Report) -> String {
    let mut out = String::new();
    // writing to a String does not fail
    let _ = match (&report.capture.reason, report.capture.attach) {
        (Some(reason), _) => writeln!(out, "This host cannot record: {}", printable(reason)),
        (None, attach) => {
            let whose = report.capture.only_user.map(|user| format!(", only processes of user {user}"));
            writeln!(out, "This host can record (uprobes: {}{}).", attach.unwrap_or("?"), whose.unwrap_or_default())
        }
    };
    let findings = report.findings.iter().map(|finding| {
        let state = match finding.state {
            State::Ok => "ok",
            State::Warning => "less",
            State::Missing => "no",
        };
        (finding.what, state.to_owned(), printable(&finding.detail))
    });
    let _ = write!(out, "\n{}", listed(findings.collect()));
    let classes = report.classes.iter().map(|class| {
        let state = class.state.replace('_', " ");
        let detail = class.why.as_deref().unwrap_or(class.records);
        let tables = if class.tables.is_empty() { String::new() } else { format!(" ({})", class.tables.join(", ")) };
        (class.name, state, printable(detail) + &tables)
    });
    let _ = write!(out, "\nRecorded (into which tables):\n{}", listed(classes.collect()));
    if !report.libraries.is_empty() {
        let libraries = report.libraries.iter().map(|library| {
            vec![
                library.kind.to_owned(),
                library.version.clone().unwrap_or_default(),
                library.processes.to_string(),
                library.class.unwrap_or("not recorded").to_owned(),
                printable(&library.path),
            ]
        });
        let header = ["library in use", "version", "processes", "recorded as", "path"];
        let _ = writeln!(out, "\n{}", render(&header, libraries, &[false, false, true]));
    }
    let of_findings = report.findings.iter().filter_map(|f| Some((f.what, f.remedy.as_deref()?)));
    let of_classes = report.classes.iter().filter_map(|c| Some((c.name, c.remedy.as_deref()?)));
    let remedies: Vec<_> = of_findings.chain(of_classes).collect();
    if !remedies.is_empty() {
        let _ = writeln!(out, "\nWhat to do:");
        for (what, remedy) in remedies {
            let remedy = printable(remedy);
            // A command is copied: it stays in one line.
            let (prose, command) = remedy.split_at(remedy.find("sudo ").unwrap_or(remedy.len()));
            out.push_str(&front::schema::wrapped(&format!("  {what}: "), prose, 4));
            if !command.is_empty() {
                let _ = writeln!(out, "    {command}");
            }
        }
    }
    out
}

/// Names, states and what they mean, in columns.
fn listed(all: Vec<(&str, String, String)>) -> String {
    let widest = all.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or(0);
    let heads: Vec<String> = all.iter().map(|(name, state, _)| format!("{name:<widest$}  {state}")).collect();
    front::schema::list(
        &heads.iter().zip(&all).map(|(head, (.., about))| (head.as_str(), about.as_str())).collect::<Vec<_>>(),
    )
}
