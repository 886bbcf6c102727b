//! A window of a board, packed as it is kept and sent.

use model::board::{BoardWindow, Time};

/// Cells in the order of their places in a board; `place_of` gives these.
pub(super) fn packed(end_ns: i64, window: verdicts::SpentWindow, place_of: impl Fn(usize) -> usize) -> BoardWindow {
    let length = window.spent.iter().map(|(place, _)| place_of(*place) + 1).max().unwrap_or(0);
    let mut packed = BoardWindow {
        end_ns,
        collectives: u32::try_from(window.collectives).unwrap_or(u32::MAX),
        late: vec![Time::UNKNOWN; length],
        wait: vec![Time::UNKNOWN; length],
        compute: vec![Time::UNKNOWN; length],
    };
    for (place, spent) in window.spent {
        let place = place_of(place);
        packed.late[place] = Time::of_ns(spent.late_ns);
        packed.wait[place] = Time::of_ns(spent.wait_ns);
        packed.compute[place] = Time::of_ns(spent.compute_ns);
    }
    packed
}
