//! Fields that formats write differently: numbers as texts, lists of ranks as texts, null.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A value; null is its default.
pub(super) fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// A whole number, also as text; -1 where there is none.
pub(super) fn number<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
    Ok(optional(from)?.unwrap_or(-1))
}

/// A whole number, also as text; none where it is null or no number.
pub(super) fn optional<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
    Ok(match Value::deserialize(from)? {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    })
}

/// A text, also of a number; null is the empty one.
pub(super) fn text<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(as_text(Value::deserialize(from)?))
}

/// Texts; one alone is a list of one.
pub(super) fn texts<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    Ok(match Value::deserialize(from)? {
        Value::Array(items) => items.into_iter().map(as_text).collect(),
        Value::Null => Vec::new(),
        one => vec![as_text(one)],
    })
}

/// Ranks: a list, or a text of one, with brackets ("[0, 1]") or without ("0,1").
pub(super) fn ranks<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<i32>, D::Error> {
    Ok(match Value::deserialize(from)? {
        Value::Array(items) => items.iter().filter_map(|item| i32::try_from(item.as_i64()?).ok()).collect(),
        Value::String(text) => {
            text.trim_matches(['[', ']', ' ']).split(',').filter_map(|rank| rank.trim().parse().ok()).collect()
        }
        _ => Vec::new(),
    })
}

fn as_text(value: Value) -> String {
    match value {
        Value::String(text) => text,
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
