//! Findings and notes of a report's time.

use model::cells::{NO_VERDICTS, integer_of, text_of};
use report::html::{Mark, Page};

use super::Asking;

/// Adds them to the page: at most 200 of each, verdicts before other findings.
pub(super) fn add(asking: &mut Asking<'_>, page: &mut Page) -> anyhow::Result<()> {
    let (since_ns, until_ns) = page.span_ns;
    let sql = format!(
        "SELECT node, since_ns, until_ns, verdict, rank, culprit_node, cause, detail FROM findings WHERE until_ns >= {since_ns} AND \
         since_ns < {until_ns} ORDER BY verdict IN {NO_VERDICTS}, since_ns LIMIT 200"
    );
    for row in asking.try_ask("findings", sql)?.rows {
        let [node, since_ns, until_ns, verdict, rank, _, cause, detail] = row.as_slice() else { continue };
        let rank = integer_of(rank).map(|rank| format!(" {rank}")).unwrap_or_default();
        let cause = text_of(cause).map(|cause| format!(", {cause}")).unwrap_or_default();
        let detail = text_of(detail).unwrap_or_default();
        let detail = if detail.starts_with('{') { String::new() } else { format!(": {detail}") };
        page.findings.push(Mark {
            since_ns: integer_of(since_ns).unwrap_or(0),
            until_ns: integer_of(until_ns).unwrap_or(0),
            node: text_of(node).unwrap_or_default(),
            text: format!("{}{rank}{cause}{detail}", text_of(verdict).unwrap_or_default()),
        });
    }
    page.findings.sort_by_key(|mark| mark.since_ns);
    let sql = format!(
        "SELECT node, ts_ns, text, attributes FROM annotations WHERE ts_ns >= {since_ns} AND ts_ns < {until_ns} ORDER BY ts_ns LIMIT 200"
    );
    for row in asking.try_ask("notes", sql)?.rows {
        let [node, ts_ns, note, attributes] = row.as_slice() else { continue };
        let at_ns = integer_of(ts_ns).unwrap_or(0);
        let attributes =
            text_of(attributes).filter(|text| text != "{}").map(|text| format!(" {text}")).unwrap_or_default();
        page.marks.push(Mark {
            since_ns: at_ns,
            until_ns: at_ns,
            node: text_of(node).unwrap_or_default(),
            text: format!("{}{attributes}", text_of(note).unwrap_or_default()),
        });
    }
    Ok(())
}
