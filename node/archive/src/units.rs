//! Owns the units of columns, as in a file's metadata: by the endings that the schema's names have
//! (docs/schema.md).

/// The unit of a column; none where it is a name, a code or a plain number.
pub(crate) fn unit(column: &str) -> Option<&'static str> {
    /// Points in time, unlike other columns that end in `_ns`.
    const TIMES: [&str; 7] = ["ts_ns", "bucket_ns", "start_ns", "seen_ns", "since_ns", "until_ns", "end_ns"];
    Some(match column {
        _ if TIMES.contains(&column) => "ns since 1970-01-01T00:00:00Z, the node's clock",
        _ if column.ends_with("_ns") => "ns",
        _ if column.ends_with("_us") => "us",
        _ if column.ends_with("_ms") => "ms",
        _ if column.ends_with("_bytes") || ["bytes", "bytes_in", "bytes_out"].contains(&column) => "B",
        _ if column.ends_with("_kib") => "KiB",
        _ if column.ends_with("_mhz") => "MHz",
        _ if column.ends_with("_mw") => "mW",
        _ if column.ends_with("_c") => "degrees Celsius",
        _ if column.ends_with("_pct") => "%",
        _ if column.ends_with("_ppb") => "parts in a billion",
        "cost_gpu_s" => "GPU-seconds",
        "comm_hash" | "cgroup_id" | "stream" | "connection" => "bit pattern of an unsigned 64-bit number",
        _ => return None,
    })
}

/// The units of a table's columns as a JSON object.
pub(crate) fn json<'c>(columns: impl Iterator<Item = &'c str>) -> String {
    let units: std::collections::BTreeMap<&str, &str> =
        columns.filter_map(|column| Some((column, unit(column)?))).collect();
    serde_json::to_string(&units).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_distinguished_from_durations_and_every_number_of_time_or_size_has_a_unit() {
        assert!(unit("ts_ns").is_some_and(|unit| unit.contains("1970")));
        assert_eq!((unit("duration_ns"), unit("bytes"), unit("rank")), (Some("ns"), Some("B"), None));
        for (table, columns) in store::declared().unwrap() {
            for (column, _) in columns.iter().filter(|(column, _)| column.contains("_ns") || column.contains("bytes")) {
                assert!(unit(column).is_some(), "{table}.{column}");
            }
        }
        assert_eq!(json(["bytes", "rank"].into_iter()), r#"{"bytes":"B"}"#);
    }
}
