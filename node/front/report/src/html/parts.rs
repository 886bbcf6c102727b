//! Helpers of several parts of the page: which ranks are named, and why a part is missing.

use verdicts::Verdict;

use super::Page;
use super::escape::text;

/// The named ranks, by host and process.
pub(super) fn named(page: &Page) -> Vec<(String, i64)> {
    let Some(report) = &page.verdict else { return Vec::new() };
    match &report.verdict {
        Verdict::Hang(hang) => {
            hang.missing.iter().map(|missing| (missing.who.node.to_string(), missing.who.pid)).collect()
        }
        verdict => verdict.named().iter().map(|culprit| (culprit.node.clone(), culprit.pid)).collect(),
    }
}

/// The text in place of a missing part.
pub(super) fn lacks(page: &Page, part: &str, otherwise: &str) -> String {
    let why = page.lacking.iter().find(|(of, _)| of == part).map(|(_, why)| format!("Not made: {why}"));
    text(&why.unwrap_or_else(|| otherwise.to_owned()))
}
