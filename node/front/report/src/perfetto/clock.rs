//! A node's times on the clock of the agent that was asked.

use query_planner::Value;

/// Two instants of a node's clock with the coordinator's times for them: between and beyond them
/// times are interpolated on a line, for clocks drift steadily.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeTime(Option<Line>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Line {
    from_ns: i64,
    to_ns: i64,
    aligned_from_ns: i64,
    aligned_to_ns: i64,
    bound_from_ns: i64,
    bound_to_ns: i64,
}

/// The question for the nodes' clocks at both ends of a span, of the nodes that have rows in
/// `table`.
#[must_use]
pub fn select(table: &str, time: &str, from_ns: i64, to_ns: i64) -> String {
    format!(
        "SELECT node, cluster_ns(at_ns * 0 + {from_ns}), cluster_ns(at_ns * 0 + {to_ns}), clock_bound_ns(at_ns * 0 + {from_ns}), \
         clock_bound_ns(at_ns * 0 + {to_ns}) FROM (SELECT node, max({time}) AS at_ns FROM {table} GROUP BY node)"
    )
}

impl NodeTime {
    /// From a row of [`select`]'s answer for that span.
    #[must_use]
    pub fn from_row(row: &[Value], from_ns: i64, to_ns: i64) -> Option<(String, Self)> {
        let [Value::Text(node), times @ ..] = row else { return None };
        let line = match times {
            [Value::Integer(a), Value::Integer(b), Value::Integer(c), Value::Integer(d)] => Some(Line {
                from_ns,
                to_ns: to_ns.max(from_ns.saturating_add(1)),
                aligned_from_ns: *a,
                aligned_to_ns: *b,
                bound_from_ns: *c,
                bound_to_ns: *d,
            }),
            // It could not be measured.
            _ => None,
        };
        Some((String::from_utf8_lossy(node).into_owned(), Self(line)))
    }

    /// A time of the node's clock on the coordinator's; unchanged where the clock is not known.
    #[must_use]
    pub fn aligned(&self, ts_ns: i64) -> i64 {
        let Some(line) = &self.0 else { return ts_ns };
        // The offset is small, and so is its growth.
        let aligned = line.aligned_to_ns.saturating_sub(line.aligned_from_ns);
        let grows = aligned.saturating_sub(line.to_ns.saturating_sub(line.from_ns));
        let moved = line.part(grows, ts_ns);
        ts_ns.saturating_add(line.aligned_from_ns.saturating_sub(line.from_ns)).saturating_add(moved)
    }

    /// Uncertainty of such a time; none where the clock is not known.
    #[must_use]
    pub fn bound_ns(&self, ts_ns: i64) -> Option<i64> {
        let line = self.0.as_ref()?;
        // It grows in both directions from the instant of measurement, so it is below the line
        // between the ends.
        let more = line.part(line.bound_to_ns.saturating_sub(line.bound_from_ns), ts_ns);
        Some(line.bound_from_ns.saturating_add(more).max(0))
    }

    /// The largest difference between the coordinator's times and the node's within the span.
    #[must_use]
    pub fn apart_ns(&self) -> i64 {
        let Some(line) = &self.0 else { return 0 };
        let apart = |aligned: i64, own: i64| aligned.saturating_sub(own).saturating_abs();
        apart(line.aligned_from_ns, line.from_ns).max(apart(line.aligned_to_ns, line.to_ns))
    }
}

impl Line {
    /// The share of `total` that has accrued at a time.
    fn part(&self, total: i64, ts_ns: i64) -> i64 {
        let (far, length) =
            (i128::from(ts_ns) - i128::from(self.from_ns), i128::from(self.to_ns) - i128::from(self.from_ns));
        i64::try_from(i128::from(total) * far / length.max(1)).unwrap_or(0)
    }
}
