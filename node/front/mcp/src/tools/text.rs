//! Answers and errors as text for an assistant, within a page: coverage first, the data fenced.

use ask::NoAnswer;
use model::Coverage;
use record::printable;

use super::LINES;
use crate::bounds::{Page, fenced};

/// Lines of a coverage that an assistant gets; further ones are counted.
const COVERAGE_LINES: usize = 20;

pub(super) fn coverage_text(coverage: &Coverage) -> String {
    let mut lines = coverage.lines();
    let more = lines.len().saturating_sub(COVERAGE_LINES);
    lines.truncate(COVERAGE_LINES);
    let mut text: Vec<String> = lines.iter().map(|line| printable(line).chars().take(400).collect()).collect();
    if more > 0 {
        text.push(format!("  … and {more} lines more: rankmesh query says all"));
    }
    text.join("\n")
}

/// Coverage first, then which part is shown, then the data.
pub(super) fn paged(page: Page, what: &str, head: &str, coverage: Option<&Coverage>, next: Option<&str>) -> String {
    let mut text = String::new();
    if let Some(coverage) = coverage {
        let missing =
            if coverage.is_complete() { "" } else { " PARTIAL: who did not answer stands at the end of the data." };
        text.push_str(&format!("Coverage: {} of {} nodes answered.{missing}\n", coverage.answered, coverage.asked));
    }
    if let Some(shown) = page.shown(what) {
        text.push_str(&shown);
        text.push('\n');
    }
    let mut lines = Vec::new();
    lines.extend((!head.is_empty()).then(|| head.to_owned()));
    lines.extend(page.into_lines());
    if let Some(coverage) = coverage.filter(|coverage| !coverage.is_complete() || !coverage.notes.is_empty()) {
        lines.push(String::new());
        lines.push(coverage_text(coverage));
    }
    text.push_str(&fenced(&lines));
    if let Some(next) = next {
        text.push('\n');
        text.push_str(next);
    }
    text
}

/// An error as text for an assistant: what happened, and the coverage so far.
pub(crate) fn failure(error: &anyhow::Error, max_tokens: usize) -> String {
    let mut text = format!("{error:#}");
    if let Some(NoAnswer { coverage: Some(coverage), .. }) = error.downcast_ref() {
        text.push('\n');
        text.push_str(&coverage_text(coverage));
    }
    let mut page = Page::new(0, LINES, max_tokens);
    text.lines().for_each(|line| page.line(line));
    let kind = if ask::is_usage(error) || error.is::<ask::UnknownJob>() { "Wrong question" } else { "No answer" };
    format!("{kind}:\n{}", fenced(&page.into_lines()))
}

/// A line of CSV, whatever its cells contain.
pub(super) fn csv(cells: &[String]) -> String {
    let quoted = cells.iter().map(|cell| {
        let cell = printable(cell);
        if cell.contains([',', '"']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell }
    });
    quoted.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_lines_stay_lines() {
        assert_eq!(
            csv(&["a".into(), "b,c".into(), "d\"e".into(), "f\ng".into(), String::new()]),
            r#"a,"b,c","d""e",f\ng,"#
        );
    }
}
