//! Values of flags that are more than a word or a number: how they are parsed, and messages on what
//! to write instead.

use std::time::Duration;

/// Ranks of a job, as `3,5-7` or, with a step, `64-126/2`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranks(pub Vec<u32>);

/// Most ranks named at once.
const MOST_RANKS: usize = 65_536;

/// `5`, `3,5-7` or `64-126/2`.
///
/// # Errors
/// These are no ranks, or too many.
pub fn parse_ranks(text: &str) -> Result<Ranks, String> {
    let wrong = || format!("'{text}' are no ranks; write 5 or 3,5-7 or 64-126/2");
    let mut ranks = Vec::new();
    for part in text.split(',') {
        let (range, step) = part.split_once('/').unwrap_or((part, "1"));
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong());
        let (first, last, step) = (number(first)?, number(last)?, number(step)? as usize);
        if first > last || step == 0 {
            return Err(wrong());
        }
        if (last - first) as usize / step >= MOST_RANKS - ranks.len() {
            return Err(format!("more than {MOST_RANKS} ranks"));
        }
        ranks.extend((first..=last).step_by(step));
    }
    Ok(Ranks(ranks))
}

/// `10s`, `500ms`, `5m`, `2h`, `7d`; a bare number is seconds.
///
/// # Errors
/// It is no duration, or none that is more than zero.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let wrong = || format!("'{text}' is not a duration; write 500ms, 10s, 5m, 2h or 7d");
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit.trim() {
        "ms" => number / 1e3,
        "" | "s" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3600.0,
        "d" => number * 86400.0,
        _ => return Err(wrong()),
    };
    if seconds <= 0.0 {
        return Err(format!("'{text}': a duration is more than zero"));
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

/// With a shorter one, nodes would be refused because of a clock that is a little off or a late
/// answer.
const SHORTEST_VALIDITY: Duration = Duration::from_secs(30);

/// How long a certificate is valid.
///
/// # Errors
/// It is no duration, or too short.
pub fn parse_validity(text: &str) -> Result<Duration, String> {
    let validity = parse_duration(text)?;
    if validity < SHORTEST_VALIDITY {
        return Err(format!("certificates valid for less than {} s cannot be kept up", SHORTEST_VALIDITY.as_secs()));
    }
    Ok(validity)
}

/// `KEY=VALUE`.
///
/// # Errors
/// There is no key.
pub fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("'{text}' is not a label; write KEY=VALUE")),
    }
}

/// A communicator's hash, hexadecimal.
///
/// # Errors
/// It is no hexadecimal number of 64 bits.
pub fn parse_hash(text: &str) -> Result<u64, String> {
    let digits = text.trim_start_matches("0x");
    u64::from_str_radix(digits, 16)
        .map_err(|_| format!("'{text}' is not a communicator hash; write 1 to 16 hexadecimal digits"))
}

/// Milliseconds, as requests have them.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks() {
        assert_eq!(parse_ranks("5"), Ok(Ranks(vec![5])));
        assert_eq!(parse_ranks("3,5-7"), Ok(Ranks(vec![3, 5, 6, 7])));
        assert_eq!(parse_ranks("0-6/3,64"), Ok(Ranks(vec![0, 3, 6, 64])));
        for wrong in ["", "a", "3-1", "1,", "-2", "0-4294967295"] {
            assert!(parse_ranks(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("7d"), Ok(Duration::from_secs(604_800)));
        assert_eq!(parse_duration("3"), Ok(Duration::from_secs(3)));
        for wrong in ["", "s", "-1s", "0s", "10 parsecs", "1e99d", "nan"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn labels_and_hashes() {
        assert_eq!(parse_label("rack=a=b"), Ok(("rack".into(), "a=b".into())));
        assert!(parse_label("rack").is_err());
        assert!(parse_label("=x").is_err());
        assert_eq!(parse_hash("0xff"), Ok(255));
        assert_eq!(parse_hash("00ab"), Ok(171));
        assert!(parse_hash("xyz").is_err());
    }
}
