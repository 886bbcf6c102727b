//! A service's requests as a chapter of a report.

use query_planner::Value;
use record::printable;
use record::units::short_duration;
use report::html::{Asked, Chain, ServiceChapter};

use super::figures::Service;
use super::{By, CauseGroup, More, text};

/// Hosts in its table, those with the most requests.
const MOST_HOSTS: usize = 100;

/// The chapter: what `rankmesh tail` prints of it, by host and by cause.
#[must_use]
pub fn chapter(service: &Service) -> ServiceChapter {
    let slowest = &service.slowest;
    let grown = slowest.excess.as_ref().filter(|excess| excess.grown);
    let all = [("all hosts".to_owned(), &service.figures)].into_iter();
    let hosts = all.chain(service.groups.iter().take(MOST_HOSTS).map(|group| (printable(&group.of), &group.figures)));
    let hosts: Vec<Vec<String>> =
        hosts.map(|(of, figures)| [of].into_iter().chain(text::figures(figures)).collect()).collect();
    let part = |more: &More| vec![percent(more.share), short_duration(more.more_ns), printable(&more.text)];
    let cause = |of: &CauseGroup| {
        let times = [of.p50_ns, of.p99_ns].map(short_duration);
        [percent(of.share), of.count.to_string()].into_iter().chain(times).chain([printable(&of.text)]).collect()
    };
    let (causes, others) = text::causes_worth_telling(slowest);
    let left_out = service.groups.len().saturating_sub(MOST_HOSTS);
    let left_out = (left_out > 0).then(|| format!("{left_out} more hosts are not in the table of hosts."));
    let beyond =
        left_out.into_iter().chain(others).chain(text::not_all(service)).chain(text::beyond(slowest)).collect();
    let examples = slowest.examples.iter().filter(|_| slowest.excess.as_ref().is_none_or(|excess| excess.grown));
    ServiceChapter {
        name: printable(&service.service),
        lead: text::lead(service),
        hosts: table(&[&["Host"][..], &text::FIGURES].concat(), hosts),
        excess: text::excess(slowest, By::Host),
        parts: table(
            &["Of the excess", "A request", "Who did what"],
            grown.into_iter().flat_map(text::worth_telling).map(part).collect(),
        ),
        causes: table(
            &["Of the excess", "Requests", "p50", "p99", "What most delays each"],
            causes.iter().map(cause).collect(),
        ),
        beyond,
        examples: examples.map(|of| Chain { head: text::head(of), links: text::links(of) }).collect(),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn table(columns: &[&str], rows: Vec<Vec<String>>) -> Asked {
    let cells = |row: Vec<String>| row.into_iter().map(|cell| Value::Text(cell.into_bytes())).collect();
    Asked {
        columns: columns.iter().map(|name| (*name).to_owned()).collect(),
        rows: rows.into_iter().map(cells).collect(),
        ..Asked::default()
    }
}
