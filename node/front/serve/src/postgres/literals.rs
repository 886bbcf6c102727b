//! Values of parameters as literals of SQLite: as the client says that they are, else as their
//! places say.

use pgwire::api::Type;
use pgwire::api::portal::Portal;
use pgwire::error::{PgWireError, PgWireResult};

use super::dialect::moments;
use super::infer::{Inferred, Parameter};
use super::statement::Statement;
use super::{errors, types};

mod arrays;

/// The values of a portal's parameters, as literals of SQLite.
///
/// # Errors
/// A value is none of its type, or its type is not known here; its type is neither sent nor told by
/// its place, or they contradict each other.
pub(super) fn literals(portal: &Portal<Statement>, inferred: &[Parameter]) -> PgWireResult<Vec<String>> {
    let statement = &portal.statement.statement;
    let kinds = parameter_types(&portal.statement.parameter_types, inferred, statement)?;
    kinds.into_iter().enumerate().map(|(at, kind)| value(portal, at, &kind)).collect()
}

/// A parameter's value: a literal, or of an array its elements by commas.
fn value(portal: &Portal<Statement>, at: usize, kind: &Type) -> PgWireResult<String> {
    let Some(Some(bytes)) = portal.parameters.get(at) else { return Ok("NULL".to_owned()) };
    let is_binary = matches!(&portal.parameter_format, pgwire::api::portal::Format::UnifiedBinary)
        || matches!(&portal.parameter_format, pgwire::api::portal::Format::Individual(codes) if codes.get(at) == Some(&1));
    let Some(element) = types::element_of(kind) else { return literal(bytes, is_binary, at, kind) };
    let wrong = || errors::data(format!("parameter ${}: is no array of one dimension", at + 1));
    let elements =
        if is_binary { arrays::binary(bytes) } else { std::str::from_utf8(bytes).ok().and_then(arrays::text) };
    let one = |element_bytes: Option<Vec<u8>>| match element_bytes {
        Some(bytes) => literal(&bytes, is_binary, at, &element),
        None => Ok("NULL".to_owned()),
    };
    let list: PgWireResult<Vec<String>> = elements.ok_or_else(wrong)?.into_iter().map(one).collect();
    Ok(list?.join(", "))
}

/// The types of parameters: as the client says, else as their places say.
///
/// # Errors
/// Neither says, or they contradict each other.
pub(super) fn parameter_types(
    given: &[Option<Type>],
    inferred: &[Parameter],
    statement: &Statement,
) -> PgWireResult<Vec<Type>> {
    let of = |(at, inferred): (usize, &Parameter)| {
        let number = at + 1;
        let given = given.get(at).cloned().flatten().filter(|kind| *kind != Type::UNKNOWN);
        if let Some(element) = given.as_ref().and_then(types::element_of) {
            let is_number = !is_text(&element);
            return match *inferred {
                _ if statement.array(at).is_none() => {
                    Err(errors::operator(format!("parameter ${number} is an array: it goes with = ANY (${number})")))
                }
                Parameter::Is(wanted) if wanted.is_number() != is_number && wanted != Inferred::Blob => {
                    Err(errors::operator(format!(
                        "parameter ${number} is an array of {} where {} is compared: send another, or write ${number}::{}[]",
                        element.name(),
                        wanted.name(),
                        types::of(wanted).name()
                    )))
                }
                _ => Ok(given.unwrap_or(Type::UNKNOWN)),
            };
        }
        if let Some(named) = statement.array(at) {
            let element = match *inferred {
                _ if let Some(element) = types::named(&named) => element,
                Parameter::Is(kind) => types::of(kind),
                _ => Type::TEXT,
            };
            return Ok(types::array_of(&element));
        }
        match (given, *inferred) {
            (Some(kind), Parameter::Is(wanted)) if is_text(&kind) && wanted.is_number() => {
                Err(errors::operator(format!(
                    "parameter ${number} is a text where a number is compared: send a number, or write CAST(${number} AS {})",
                    wanted.name()
                )))
            }
            (Some(kind), _) => Ok(kind),
            (None, Parameter::Is(kind)) => Ok(types::of(kind)),
            (None, Parameter::Unknown) => Err(errors::indeterminate(format!(
                "could not determine data type of parameter ${number}: write CAST(${number} AS INTEGER), REAL, TEXT or BLOB"
            ))),
            (None, Parameter::Differs) => Err(errors::indeterminate(format!(
                "parameter ${number} is a number in one place and a text in another: CAST(${number} AS …) in each"
            ))),
        }
    };
    inferred.iter().enumerate().map(of).collect()
}

fn is_text(kind: &Type) -> bool {
    [Type::TEXT, Type::VARCHAR, Type::BPCHAR, Type::NAME, Type::UUID].contains(kind)
}

fn literal(bytes: &[u8], is_binary: bool, at: usize, kind: &Type) -> PgWireResult<String> {
    let wrong = |error: &dyn std::fmt::Display| errors::data(format!("parameter ${}: {error}", at + 1));
    // Times are integers here: nanoseconds since 1970.
    let moment = |ns: Option<i64>| ns.map(integer_literal).ok_or_else(|| wrong(&"is no time between 1677 and 2262"));
    let number = |real: f64| if real.is_finite() { format!("{real:?}") } else { infinite(real) };
    if is_binary {
        let sized = |size: usize| (bytes.len() == size).then_some(()).ok_or_else(|| wrong(&"has the wrong length"));
        let integer = || -> PgWireResult<i64> {
            let mut all = [if bytes.first().is_some_and(|first| first & 0x80 != 0) { 0xff } else { 0 }; 8];
            all[8 - bytes.len()..].copy_from_slice(bytes);
            Ok(i64::from_be_bytes(all))
        };
        return match *kind {
            Type::INT2 => sized(2).and_then(|()| integer()).map(integer_literal),
            Type::INT4 => sized(4).and_then(|()| integer()).map(integer_literal),
            Type::INT8 => sized(8).and_then(|()| integer()).map(integer_literal),
            Type::OID => sized(4).map(|()| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).to_string()),
            Type::BOOL => sized(1).map(|()| u8::from(bytes[0] != 0).to_string()),
            Type::FLOAT4 => {
                sized(4).map(|()| number(f64::from(f32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))))
            }
            Type::FLOAT8 => sized(8).map(|()| {
                let mut all = [0; 8];
                all.copy_from_slice(bytes);
                number(f64::from_be_bytes(all))
            }),
            Type::BYTEA => Ok(blob(bytes)),
            Type::UUID => sized(16).map(|()| format!("'{}'", uuid(bytes))),
            Type::NUMERIC => {
                let text = decimal(bytes).ok_or_else(|| wrong(&"is no numeric in binary form"))?;
                decimal_literal(&text).ok_or_else(|| wrong(&"is no number"))
            }
            Type::TIMESTAMP | Type::TIMESTAMPTZ => {
                sized(8).and_then(|()| integer()).and_then(|at| moment(moments::of_microseconds(at)))
            }
            Type::DATE => sized(4)
                .and_then(|()| integer())
                .and_then(|day| moment(i32::try_from(day).ok().and_then(moments::of_days))),
            Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::UNKNOWN | Type::JSON => {
                std::str::from_utf8(bytes).map_err(|error| wrong(&error)).and_then(|text| quoted(text, at))
            }
            ref other => Err(wrong(&format!("{} in binary form is not read here: send text", other.name()))),
        };
    }
    let text = std::str::from_utf8(bytes).map_err(|error| wrong(&error))?;
    match *kind {
        Type::TIMESTAMP | Type::TIMESTAMPTZ | Type::DATE => moment(moments::moment(text)),
        Type::INTERVAL => moments::interval(text).map(integer_literal).map_err(|error| wrong(&error)),
        // Programs that send times and truths without a type write them as texts.
        Type::INT8 if text == "true" => Ok("1".to_owned()),
        Type::INT8 if text == "false" => Ok("0".to_owned()),
        Type::INT8 if moments::moment(text).is_some() => moment(moments::moment(text)),
        Type::INT2 | Type::INT4 | Type::INT8 | Type::OID => {
            let span = || moments::interval(text).ok().filter(|_| text.contains(|c: char| c.is_ascii_alphabetic()));
            text.trim().parse::<i64>().ok().or_else(span).map(integer_literal).ok_or_else(|| {
                let text: String = record::printable(text).chars().take(40).collect();
                wrong(&format!("{text:?} is no integer (times are integers: nanoseconds since 1970)"))
            })
        }
        Type::NUMERIC => decimal_literal(text.trim()).ok_or_else(|| wrong(&"is no number")),
        Type::FLOAT4 | Type::FLOAT8 => text.trim().parse::<f64>().map(number).map_err(|error| wrong(&error)),
        Type::BOOL => match text.trim().to_ascii_lowercase().as_str() {
            "t" | "true" | "1" | "on" | "yes" | "y" => Ok("1".to_owned()),
            "f" | "false" | "0" | "off" | "no" | "n" => Ok("0".to_owned()),
            _ => Err(wrong(&"is neither true nor false")),
        },
        Type::BYTEA => match text.strip_prefix("\\x") {
            Some(hex) if hex.len() % 2 == 0 && hex.bytes().all(|c| c.is_ascii_hexdigit()) => Ok(format!("x'{hex}'")),
            _ => Err(wrong(&"bytea is read in hexadecimal form: \\x…")),
        },
        _ => quoted(text, at),
    }
}

/// A decimal number as a literal: an integer where it is one that fits, else a real.
fn decimal_literal(text: &str) -> Option<String> {
    let whole =
        text.split_once('.').map_or(text, |(whole, rest)| if rest.trim_matches('0').is_empty() { whole } else { text });
    if let Ok(integer) = whole.parse::<i64>() {
        return Some(integer_literal(integer));
    }
    let real = text.parse::<f64>().ok()?;
    Some(if real.is_finite() { format!("{real:?}") } else { infinite(real) })
}

/// The text of a numeric in binary form: the counts of its digits to the base 10,000, of those before
/// the point less one, its sign, the digits shown behind the point, and the digits; 16 bits each
/// (`numeric_send`, <https://github.com/postgres/postgres/blob/master/src/backend/utils/adt/numeric.c>).
fn decimal(bytes: &[u8]) -> Option<String> {
    let words: Vec<u16> = bytes.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
    let [count, weight, sign, _, digits @ ..] = &words[..] else { return None };
    if !bytes.len().is_multiple_of(2)
        || digits.len() != usize::from(*count)
        || digits.iter().any(|digit| *digit > 9_999)
    {
        return None;
    }
    let mut text = match sign {
        0 => String::new(),
        0x4000 => "-".to_owned(),
        0xc000 => return Some("NaN".to_owned()),
        0xd000 => return Some("inf".to_owned()),
        0xf000 => return Some("-inf".to_owned()),
        _ => return None,
    };
    let weight = i64::from(weight.cast_signed());
    if !(-100..=100).contains(&weight) {
        return None;
    }
    let digit = |place: i64| usize::try_from(place).ok().and_then(|place| digits.get(place)).copied().unwrap_or(0);
    text.push('0');
    for place in 0..=weight {
        text.push_str(&format!("{:04}", digit(place)));
    }
    text.push('.');
    for place in (weight + 1).min(0)..i64::from(*count) {
        if place > weight {
            text.push_str(&format!("{:04}", digit(place)));
        }
    }
    text.push('0');
    Some(text)
}

/// The smallest integer cannot be written as a literal of SQLite.
fn integer_literal(integer: i64) -> String {
    if integer == i64::MIN { "(-9223372036854775807 - 1)".to_owned() } else { integer.to_string() }
}

fn infinite(real: f64) -> String {
    match real {
        real if real.is_nan() => "NULL",
        real if real > 0.0 => "9e999",
        _ => "-9e999",
    }
    .to_owned()
}

/// A UUID as PostgreSQL writes it.
fn uuid(bytes: &[u8]) -> String {
    let digits = hex::encode(bytes);
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

fn blob(bytes: &[u8]) -> String {
    format!("x'{}'", hex::encode(bytes))
}

fn quoted(text: &str, at: usize) -> Result<String, PgWireError> {
    if text.contains('\0') {
        return Err(errors::data(format!("parameter ${}: holds a NUL", at + 1)));
    }
    Ok(format!("'{}'", text.replace('\'', "''")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_texts_become_literals() {
        for (words, expected) in [
            (&[0u16, 0, 0, 0][..], "0"),
            (&[1, 0, 0, 1, 7], "7"),
            (&[1, 0xffff, 0, 1, 5_000], "0.5"),
            (&[1, 0xfffe, 0, 8, 5], "5e-8"),
            (&[2, 1, 0x4000, 0, 1, 2_345], "-12345"),
            (&[2, 0, 0, 2, 12, 3_400], "12.34"),
            (&[1, 2, 0, 0, 3], "300000000"),
            (&[0, 0, 0xc000, 0], "NULL"),
        ] {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            assert_eq!(decimal(&bytes).and_then(|text| decimal_literal(&text)).as_deref(), Some(expected), "{words:?}");
        }
        assert_eq!(decimal(&[0, 2, 0, 0, 0, 0, 0, 0, 0, 1]), None);
        assert_eq!(integer_literal(i64::MIN), "(-9223372036854775807 - 1)");
        assert_eq!(quoted("'; DROP", 0).unwrap(), "'''; DROP'");
    }
}
