//! `rankmesh doctor` for people, in 80 columns: the nodes, their releases, the paths between them in
//! one line, the findings.

use std::collections::BTreeMap;
use std::fmt::Write;

use ask::output::{printable, render};
use model::health::Health;
use record::units::duration;
use record::{shortened, wrapped};
use verdicts::hostlist::fold_names;

use super::judge::{Examination, Examined, Finding, State};

/// Characters of how a node records: what is behind a colon, and more, are in its finding.
const RECORDING: usize = 13;

/// The report as text, ending in a newline.
pub(super) fn text(examination: &Examination, findings: &[Finding]) -> String {
    let mut out = String::new();
    let rows = examination.members.iter().map(|member| row(examination, member));
    let header = ["node", "state", "recording", "clock", "rtt", "MTU", "cert."];
    let right = [false, false, false, true, true, true, true];
    // writing to a String does not fail
    let _ = writeln!(out, "{}", render(&header, rows, &right));
    out.push_str(&wrapped(&releases(examination)));
    let _ = writeln!(out, "{}", ways(examination));
    if findings.is_empty() {
        let _ = writeln!(out, "\nNothing is wrong.");
        return out;
    }
    for Finding { node, what, state, detail, remedy } in findings {
        let state = if *state == State::Wrong { "wrong" } else { "less" };
        let whose = if node.is_empty() { String::new() } else { format!("{}: ", printable(node)) };
        let text = format!("{state}: {whose}{what}: {}\n  do: {}", printable(detail), printable(remedy));
        let _ = write!(out, "\n{}", wrapped(&text));
    }
    out
}

/// A line for each release on each kernel, with the nodes that run it.
fn releases(examination: &Examination) -> String {
    let mut on: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for member in &examination.members {
        let kernel = member.health.as_ref().map_or("?", |health| health.kernel.as_str());
        on.entry((&member.version, kernel)).or_default().push(&member.name);
    }
    let line = |((release, kernel), nodes): (&(&str, &str), &Vec<&str>)| {
        let release = if release.is_empty() { "?" } else { release };
        format!("release {}, kernel {}: {}", printable(release), printable(kernel), fold_names(nodes.iter().copied()))
    };
    on.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn row(examination: &Examination, member: &Examined) -> Vec<String> {
    let own = examination.members.iter().find(|own| own.name == examination.asked_by);
    let way = own
        .and_then(|own| own.health.as_ref())
        .and_then(|health| health.reached.iter().find(|reached| reached.node == member.name))
        .and_then(|reached| reached.way);
    let health = |of: fn(&Health) -> String| member.health.as_ref().map_or_else(|| "?".to_owned(), of);
    let name = match (&member.by_way_of, member.name == examination.asked_by) {
        (_, true) => format!("{} (this node)", member.name),
        (Some(by), _) => format!("{} (by way of {by})", member.name),
        _ => member.name.clone(),
    };
    let cells = [
        name,
        member.state.clone(),
        health(|health| shortened(health.capture.split(':').next().unwrap_or_default(), RECORDING)),
        way.map_or_else(String::new, |way| format!("{} ± {}", duration(way.offset_ns), duration(way.bound_ns))),
        way.map_or_else(String::new, |way| duration(way.rtt_ns)),
        way.map_or_else(String::new, |way| way.mtu.to_string()),
        health(|health| match (health.certificate_ends_ns - health.now_ns) / 3_600_000_000_000 {
            _ if health.certificate_ends_ns == 0 => "?".to_owned(),
            hours @ 0..72 => format!("{hours} h"),
            hours => format!("{} d", hours / 24),
        }),
    ];
    cells.map(|cell| printable(&cell)).to_vec()
}

/// How many of the paths between nodes work.
fn ways(examination: &Examination) -> String {
    let tried =
        examination.members.iter().filter_map(|member| member.health.as_ref()).flat_map(|health| &health.reached);
    let (tried, good) =
        tried.fold((0, 0), |(tried, good), reached| (tried + 1, good + usize::from(reached.way.is_some())));
    let whom = match examination.neighbours {
        Some(number) => {
            format!(" (each node tried {number} neighbours, {} tried all)", printable(&examination.asked_by))
        }
        None => String::new(),
    };
    format!("{good} of {tried} ways between nodes work{whom}.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::health::{PathSeen, Reached};

    fn member(name: &str, kernel: &str, capture: &str, to: &str) -> Examined {
        let way =
            PathSeen { rtt_ns: 2_851_000, offset_ns: 1_010_000, bound_ns: 1_430_000, mtu: 1452, ..PathSeen::default() };
        let reached = Reached { node: to.to_owned(), way: Some(way), ..Reached::default() };
        let health = Health {
            kernel: kernel.to_owned(),
            capture: capture.to_owned(),
            certificate_ends_ns: 100 * 3_600_000_000_000,
            reached: vec![reached],
            ..Health::default()
        };
        let (name, state, version) = (name.to_owned(), "live".to_owned(), "0.1.0".to_owned());
        Examined { name, state, version, health: Some(health), ..Examined::default() }
    }

    #[test]
    fn what_is_printed_fits_80_columns() {
        let why = "no eBPF: the kernel has no BTF (/sys/kernel/btf/vmlinux), and none is beside the binary";
        let members = vec![
            member("gpu-1", "6.18.44-fc-v595", "on", "gpu-2"),
            member("gpu-2", "6.18.44-fc-v595", why, "gpu-1"),
            member("gpu-3", "5.14.0-427.el9", "on", "gpu-1"),
        ];
        let examination = Examination { asked_by: "gpu-1".to_owned(), members, neighbours: None };
        let finding = |state, node: &str| Finding {
            node: node.to_owned(),
            what: "recording",
            state,
            detail: why.to_owned(),
            remedy: "rankmesh check on it says what is lacking, and what each kernel and distribution needs for it"
                .to_owned(),
        };
        let text = text(&examination, &[finding(State::Wrong, "gpu-2"), finding(State::Warning, "")]);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("release 0.1.0, kernel 6.18.44-fc-v595: gpu-[1-2]\n"), "{text}");
        assert!(text.contains("3 of 3 ways between nodes work."), "{text}");
        assert!(
            text.contains("\nwrong: gpu-2: recording: no eBPF: ") && text.contains("\nless: recording: no"),
            "{text}"
        );
        assert!(text.contains("\n  do: rankmesh check on it says"), "{text}");
    }
}
