//! Owns answering from the summaries of segments, without looking at their rows.

use query_planner::scan::{Groups, Operand};

use super::super::super::segment::{Segment, summary};
use super::super::{Failure, Work, failed};
use super::states::{Argument, Basic, State};

/// A question that the summaries of segments answer: grouped by columns that they group by, over
/// the column that they sum up.
pub(super) struct Summed {
    keys: &'static [&'static str],
    /// The places of the question's keys among them.
    places: Vec<usize>,
    with_quantiles: bool,
}

impl Summed {
    pub(super) fn of(work: &Work<'_>, groups: &Groups, arguments: &[Argument]) -> Option<Self> {
        let (keys, value) = summary::summed(work.table)?;
        let column = |operand: &Operand| match operand {
            Operand::Column(name) => Some(name.clone()),
            _ => None,
        };
        let fits = |argument: &Argument| {
            column(&argument.operand).is_some_and(|name| name == value)
                && argument.gathered.is_none()
                && argument.distinct.is_none()
        };
        if !arguments.iter().all(fits) {
            return None;
        }
        let place = |key: &Operand| keys.iter().position(|name| column(key).is_some_and(|key| key == *name));
        let places = groups.keys.iter().map(place).collect::<Option<_>>()?;
        Some(Self { keys, places, with_quantiles: arguments.iter().any(|argument| argument.quantiles.is_some()) })
    }

    /// Add what a segment's summary says of the rows that the conditions admit. False when it has
    /// none, or when the conditions cut through its groups: then its rows are to be looked at.
    pub(super) fn add(
        &self,
        work: &Work<'_>,
        segment: &Segment,
        State { found, arguments }: &mut State,
    ) -> Result<bool, Failure> {
        let Some(admits) = work.filter.of_summary(segment, self.keys) else { return Ok(false) };
        let Some(groups) = summary::read(work.conn, segment, self.with_quantiles).map_err(failed)? else {
            return Ok(false);
        };
        for group in groups.into_iter().filter(|group| admits(&group.key)) {
            let key = self.places.iter().map(|place| group.key[*place].clone()).collect();
            let at = found.group(key, arguments)? as usize;
            found.rows[at] += group.count;
            for argument in arguments.iter_mut() {
                let (least, greatest) = (group.least, group.greatest);
                argument.basics[at].merge(&Basic { count: group.count.cast_signed(), sum: group.sum, least, greatest });
                if let Some(all) = &mut argument.quantiles {
                    let (zeros, counts) = &group.buckets;
                    all[at].add_counts(*zeros, counts, (group.least, group.greatest));
                }
            }
        }
        Ok(true)
    }
}
