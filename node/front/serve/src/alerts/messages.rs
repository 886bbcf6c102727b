//! What receivers are sent of an alert.

use ask::output::printable;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{About, Key, Sent};

/// Time after which Alertmanager may consider an alert over when no message came.
const ENDS_AFTER_S: i64 = 240;

pub(super) fn alertmanager(key: &Key, sent: &Sent, at: Timestamp) -> Value {
    let ends = sent.over.unwrap_or_else(|| at.checked_add(jiff::SignedDuration::from_secs(ENDS_AFTER_S)).unwrap_or(at));
    let about = &sent.alert.about;
    let name = match about {
        About::Job(_) => "RankmeshStraggler",
        About::Service(..) => "RankmeshTailGrownOnHost",
    };
    let mut labels = json!({ "alertname": name, "severity": "warning", "verdict": printable(&key.verdict) });
    for (name, value) in [("job", &key.job), ("service", &key.service), ("rank", &key.rank), ("node", &key.node)] {
        if !value.is_empty() {
            labels[name] = printable(value).into();
        }
    }
    json!({
        "labels": labels,
        "annotations": { "summary": printable(about.sentence()), "cause": printable(about.cause().unwrap_or("not known")) },
        "startsAt": sent.alert.since.to_string(),
        "endsAt": ends.to_string(),
    })
}

pub(super) fn webhook(sent: &Sent) -> Value {
    let mut message = json!({
        "version": 1,
        "status": if sent.over.is_some() { "resolved" } else { "firing" },
        "agent": sent.alert.agent,
        "starts_at": sent.alert.since.to_string(),
        "ends_at": sent.over.map(|at| at.to_string()),
    });
    match &sent.alert.about {
        About::Job(job) => message["job"] = json!(job),
        About::Service(name, grown) => {
            message["service"] = json!({ "name": name, "node": sent.alert.agent, "grown": grown });
        }
    }
    message
}

pub(super) fn slack(sent: &Sent) -> Value {
    // <https://api.slack.com/reference/surfaces/formatting#escaping>; backquotes would end the
    // code.
    let escaped =
        |text: &str| printable(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('`', "'");
    let about = &sent.alert.about;
    let (title, sentence) = (escaped(&about.title()), escaped(about.sentence()));
    let text = match sent.over {
        None => {
            let cause = about.cause().map(|cause| format!("\nCause: {}", escaped(cause))).unwrap_or_default();
            format!(":warning: {title}: {sentence}{cause}")
        }
        Some(_) => format!(":white_check_mark: {title}: over: {sentence}"),
    };
    json!({ "text": text })
}
