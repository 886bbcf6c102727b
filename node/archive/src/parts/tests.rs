//! Hours of an archive: which are looked into, and what is said of the others.

use super::*;
use crate::manifest::{Dropped, Gap, Loss};
use crate::place::{Place, Settings};

fn manifest() -> Manifest {
    serde_json::from_value(serde_json::json!({
        "version": 1, "node": "n1", "store": "1", "schema_version": 1, "rankmesh": "x", "since_ns": 0,
        "until_ns": 0, "written_ns": 0, "tables": [], "losses": [], "gaps": [], "dropped": [],
    }))
    .unwrap()
}

#[test]
fn extreme_times_are_no_panic() {
    let (least, most) = (i64::MIN, i64::MAX);
    let mut missing = Missing::default();
    let loss = Loss { probe: "p".into(), reason: "r".into(), since_ns: least, until_ns: most, lost: u64::MAX };
    let hours = Manifest {
        gaps: vec![Gap { since_ns: least, until_ns: most }, Gap { since_ns: most, until_ns: least }],
        losses: vec![loss],
        dropped: vec![Dropped { table: "collectives".into(), until_ns: most, rows: u64::MAX }],
        ..manifest()
    };
    for range in [least..most, most..least, 0..most] {
        missing.add(&hours, &range, &|_| true);
        missing.add(&hours, &range, &|_| true);
    }
    missing.hours.add(Hour::of_ns(least), Hour::of_ns(most));
    missing.hours.add(Hour::of_ns(least), Hour::of_ns(most));
    assert!(missing.notes().len() >= 4);
}

#[test]
fn days_without_hours_are_counted_and_not_looked_into() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::open(dir.path().to_str().unwrap(), &Settings::default()).unwrap();
    let name = StoreName { node: "n1".into(), birth_ns: 1 };
    let first = Hour::read("2024-01-01", "05").unwrap();
    let end = Hour::read("2026-01-01", "00").unwrap();
    let (first_ns, until_ns) = (first.range_ns().start, end.range_ns().start);
    let store = serde_json::json!({
        "version": 1, "node": "n1", "store": "1", "first_ns": first_ns, "until_ns": until_ns,
    });
    place.write(&layout::store(&name), store.to_string()).unwrap();
    for (day, hour) in [("2024-01-01", "05"), ("2025-03-01", "07")] {
        let hour = Hour::read(day, hour).unwrap();
        place.write(&layout::manifest(hour, &name), serde_json::to_vec(&manifest()).unwrap()).unwrap();
    }
    // Neither is a day.
    place.write("manifest/date=9999999/hour=00/x", "").unwrap();
    place.write("manifest/other/x", "").unwrap();
    let archive = Arc::new(Archive::open(place).unwrap());
    let node = Node { archive, stores: vec![name.clone()], live: None, asked_ns: 0 };
    let hours = node.hours_in(&name, &(i64::MIN..i64::MAX), None).unwrap();
    assert_eq!(hours.listed.len(), 19 + 24);
    let all = end.number() - first.number();
    assert_eq!(hours.unlisted.count, all - 43);
    let notes = node.notes(&["collectives"], &(i64::MIN..i64::MAX));
    let of = format!("{} hours from 2024-01-01T06:00Z to 2026-01-01T00:00Z are not in the archive", all - 2);
    assert!(notes.contains(&of), "{notes:?}");
    // A day or less is looked into at once; what the live store has is not.
    let day = first_ns..first.plus(24).range_ns().start;
    assert_eq!(node.hours_in(&name, &day, None).unwrap().listed.len(), 24);
    assert_eq!(node.hours_in(&name, &day, Some(first.plus(3).range_ns().start)).unwrap().listed.len(), 3);
    assert!(node.hours_in(&name, &(until_ns..i64::MAX), None).unwrap().listed.is_empty());
    assert!(node.hours_in(&name, &(i64::MIN..first_ns), None).unwrap().listed.is_empty());
}
