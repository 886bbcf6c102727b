//! Which lane another is written against: the ranks of a host mostly have the same lanes in the
//! same order.

use super::super::Lane;

/// Where the lanes of the last process begin, and those of the one before it.
#[derive(Default)]
pub(super) struct Neighbour {
    before: usize,
    current: usize,
}

impl Neighbour {
    /// The next lane, if it is at the same place among those of its process as one of the process
    /// before: that one, and the place of the process.
    pub(super) fn like<'a>(&self, lanes: &'a [Lane]) -> Option<(&'a Lane, usize)> {
        let last = lanes.last()?;
        let ordinal = lanes.len() - self.current;
        let here = lanes.get(self.before..self.current)?.get(ordinal);
        here.map(|like| (like, last.process)).or_else(|| Some((lanes.get(self.current)?, last.process + 1)))
    }

    /// A lane was added at the end.
    pub(super) fn added(&mut self, lanes: &[Lane]) {
        if let [.., before, last] = lanes
            && before.process != last.process
        {
            (self.before, self.current) = (self.current, lanes.len() - 1);
        }
    }
}
