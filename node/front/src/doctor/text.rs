//! `rankmesh doctor` for people: the nodes, the paths between them in one line, the findings.

use std::fmt::Write;

use ask::output::{printable, render};
use model::health::Health;
use record::units::duration;

use super::judge::{Examination, Examined, Finding, State};

/// The report as text, ending in a newline.
pub(super) fn text(examination: &Examination, findings: &[Finding]) -> String {
    let mut out = String::new();
    let rows = examination.members.iter().map(|member| row(examination, member));
    let header = ["node", "address", "state", "release", "kernel", "recording", "clock", "rtt", "MTU", "certificate"];
    let right = [false, false, false, false, false, false, true, true, true, true];
    // writing to a String does not fail
    let _ = writeln!(out, "{}", render(&header, rows, &right));
    let _ = writeln!(out, "{}", ways(examination));
    if findings.is_empty() {
        let _ = writeln!(out, "\nNothing is wrong.");
        return out;
    }
    let rows = findings.iter().map(|finding| {
        let state = if finding.state == State::Wrong { "wrong" } else { "less" };
        let cells = [finding.node.as_str(), finding.what, state, &finding.detail, &finding.remedy];
        cells.map(printable).to_vec()
    });
    let _ = writeln!(out, "\n{}", render(&["node", "what", "", "detail", "what to do"], rows, &[]));
    out
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
        member.address.clone(),
        member.state.clone(),
        member.version.clone(),
        health(|health| health.kernel.clone()),
        health(|health| health.capture.clone()),
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
