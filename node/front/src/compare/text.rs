//! A comparison as text: a table of figures, then what each side was like.

use ask::output::render;
use explain::compare::{Change, Outcome};
use record::units::duration;

use super::Comparison;

/// Changes listed in text.
const ROWS: usize = 40;

/// A figure in readable units.
pub(super) fn shown(value: f64, unit: &str) -> String {
    if unit == "ns" { duration(value as i64) } else { format!("{value:.1} {unit}") }
}

fn outcome_text(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::More => "more",
        Outcome::Less => "less",
        Outcome::Small => "differs by less than 1 %",
        Outcome::NotShown => "no difference that this data can show",
        Outcome::TooFew => "too few values",
        Outcome::OneSided => "there on one side only",
    }
}

pub(super) fn line(change: &Change) -> String {
    let value = |value: Option<f64>| value.map_or_else(|| "not there".to_owned(), |value| shown(value, change.unit));
    format!(
        "{} ({}): {} before, {} after: {}",
        change.measure,
        change.of,
        value(change.before),
        value(change.after),
        outcome_text(change.verdict)
    )
}

pub(super) fn printed(found: &Comparison) -> String {
    let changed = |change: &&Change| matches!(change.verdict, Outcome::More | Outcome::Less | Outcome::OneSided);
    let rows = found.changes.iter().take(ROWS).map(|change| {
        let value = |value: Option<f64>| value.map_or_else(String::new, |value| shown(value, change.unit));
        let interval = change.shift.filter(|shift| shift.low > f64::MIN && shift.high < f64::MAX);
        vec![
            format!("{} {}", change.measure, change.of),
            value(change.before),
            value(change.after),
            change
                .shift
                .zip(change.before)
                .filter(|(_, before)| *before != 0.0)
                .map_or_else(String::new, |(shift, before)| format!("{:+.1} %", shift.estimate / before * 100.0)),
            interval.map_or_else(String::new, |s| {
                format!("{} to {}", shown(s.low, change.unit), shown(s.high, change.unit))
            }),
            change.shift.map_or_else(String::new, |shift| format!("{:+.2}", shift.effect)),
            format!("{}, {}", change.values[0], change.values[1]),
            outcome_text(change.verdict).to_owned(),
        ]
    });
    let mut out = match found.changes.iter().filter(changed).count() {
        0 => "No difference that this data can show.\n".to_owned(),
        n => format!("{n} of {} figures changed.\n", found.changes.len()),
    };
    out.push_str(&render(
        &["figure", "before", "after", "shift", "95 % interval of the shift", "effect", "values", ""],
        rows,
        &[false, true, true, true, true, true, true, false],
    ));
    out.push('\n');
    if found.changes.len() > ROWS {
        out.push_str(&format!("… and {} more (--format json has all)\n", found.changes.len() - ROWS));
    }
    out.push_str(&format!("\nBefore: {}.\nAfter: {}.\n", found.regimes[0], found.regimes[1]));
    for (title, lines) in [("Regime", &found.regime), ("Not visible", &found.not_visible)] {
        if !lines.is_empty() {
            out.push_str(&format!("\n{title}:\n"));
            lines.iter().for_each(|line| out.push_str(&format!("  - {line}\n")));
        }
    }
    out
}
