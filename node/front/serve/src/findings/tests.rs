//! Following findings of hosts whose clocks are wrong, of many, and of those that mean harm.

use super::*;

const NOW: i64 = 1_800_000_000_000_000_000;
const SECOND: i64 = 1_000_000_000;
const YEAR: i64 = 365 * 86_400 * SECOND;

/// Findings of a mesh: time, node, detail.
#[derive(Default)]
struct Mesh {
    rows: Vec<(i64, String, String)>,
    asked: usize,
}

impl Mesh {
    fn add(&mut self, ts_ns: i64, node: &str, detail: &str) {
        self.rows.push((ts_ns, node.to_owned(), detail.to_owned()));
    }

    /// The answer of an agent.
    fn answer(&mut self, page: &Page) -> Found {
        self.asked += 1;
        let (after, node) = &page.after;
        let is_after = |row: &(i64, String, String)| {
            row.0 > *after || (row.0 == *after && node.as_ref().is_some_and(|node| row.1 > *node))
        };
        let is_asked = |row: &(i64, String, String)| row.0 <= page.until && !page.without.contains(&row.1);
        let mut rows: Vec<_> = self.rows.iter().filter(|row| is_after(row) && is_asked(row)).collect();
        rows.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        let text = |text: &str| Value::Text(text.into());
        let (more, rows) = (rows.len() > MOST, rows.into_iter().take(MOST));
        Found {
            columns: ["node", "ts_ns", "detail"].map(column).into(),
            rows: rows.map(|row| vec![text(&row.1), Value::Integer(row.0), text(&row.2)]).collect(),
            more,
            coverage: Coverage::default(),
        }
    }

    fn look(&mut self, following: &mut Following, now_ns: i64) -> Vec<Finding> {
        following.look(now_ns, &mut |page| Ok(self.answer(page))).unwrap()
    }
}

fn column(name: &str) -> ColumnMeta {
    ColumnMeta { name: name.to_owned(), decl_type: String::new() }
}

fn details(found: &[Finding]) -> Vec<&str> {
    found.iter().map(|finding| finding.object["detail"].as_str().unwrap()).collect()
}

#[test]
fn a_finding_of_the_future_hides_no_others() {
    let (mut mesh, mut following) = (Mesh::default(), Following::from(NOW));
    mesh.add(i64::MAX, "liar", "of no time");
    mesh.add(NOW + YEAR, "ahead", "of a clock a year ahead");
    mesh.add(NOW + 30 * SECOND, "soon", "of a clock half a minute ahead");
    let found = mesh.look(&mut following, NOW + SECOND);
    assert_eq!(details(&found), ["of a clock half a minute ahead"]);
    assert_eq!((found[0].ts_ns, found[0].reached_ns), (NOW + 30 * SECOND, NOW + SECOND));
    for at in 1..=100 {
        let now_ns = NOW + at * SECOND;
        mesh.add(now_ns - 5, "honest", &format!("{at}"));
        assert_eq!(details(&mesh.look(&mut following, now_ns)), [format!("{at}")], "once, and the others not again");
    }
    // What was ahead comes when it is no longer.
    assert_eq!(details(&mesh.look(&mut following, NOW + YEAR)), ["of a clock a year ahead"]);
    assert_eq!(following.newest_ns, NOW + YEAR);
}

#[test]
fn more_than_a_thousand_in_a_minute_all_come() {
    let (mut mesh, mut following) = (Mesh::default(), Following::from(NOW));
    // A bucket fails for all hosts at once; many see it at the same moment.
    for host in 0..3_500 {
        mesh.add(NOW + 5 + i64::from(host >= 2_000) * i64::from(host), &format!("n{host:04}"), "archive");
    }
    let mut came = BTreeSet::new();
    let mut looks = 0;
    while came.len() < 3_500 && looks < 10 {
        looks += 1;
        for finding in mesh.look(&mut following, NOW + 2 * SECOND * looks) {
            assert!(came.insert(finding.object["node"].as_str().unwrap().to_owned()), "{finding:?} came twice");
        }
    }
    assert_eq!((came.len(), looks), (3_500, 1));
    // More than a look reads: the next continues, and then late rows are looked for again.
    for at in 0..12_000 {
        mesh.add(NOW + SECOND + at, &format!("n{:04}", at % 100), "more");
    }
    let more: Vec<usize> = (1..=3).map(|at| mesh.look(&mut following, NOW + (20 + at) * SECOND).len()).collect();
    assert_eq!(more.iter().sum::<usize>(), 12_000, "{more:?}");
    mesh.add(NOW + SECOND / 2, "late", "late");
    let late: Vec<Finding> = (1..=3).flat_map(|at| mesh.look(&mut following, NOW + (30 + at) * SECOND)).collect();
    assert_eq!(details(&late), ["late"]);
    // One host's at one moment: those of others come all the same.
    for at in 0..1_500 {
        mesh.add(NOW + 40 * SECOND, "flood", &at.to_string());
    }
    mesh.add(NOW + 40 * SECOND + 1, "n0001", "after it");
    let found: Vec<Finding> = (1..=3).flat_map(|at| mesh.look(&mut following, NOW + (40 + at) * SECOND)).collect();
    assert!(details(&found).contains(&"after it") && found.len() > MOST, "{}", found.len());
}

#[test]
fn a_host_with_findings_without_end_hides_nobodys() {
    let mut following = Following::from(NOW);
    let (mut mesh, mut came) = (Mesh::default(), Vec::new());
    mesh.add(NOW + 50 * SECOND, "honest", "one");
    for at in 0..40 {
        // It has a thousand more right after whatever it is asked for.
        let found = following.look(NOW + (50 + 2 * at) * SECOND, &mut |page| {
            mesh.rows.retain(|row| row.1 == "honest");
            for next in 1..=1_001 {
                mesh.add(page.after.0 + next, "liar", "none");
            }
            Ok(mesh.answer(page))
        });
        came.extend(found.unwrap().into_iter().filter(|finding| finding.object["node"] == "honest"));
        if at == 1 {
            mesh.add(NOW + 51 * SECOND, "honest", "two");
        }
    }
    assert_eq!(details(&came), ["one", "two"]);
}

#[test]
fn what_was_seen_takes_bounded_memory() {
    let mut following = Following::from(NOW);
    let columns: Vec<ColumnMeta> = ["node", "ts_ns", "detail"].map(column).into();
    let mut next = 0_i64;
    // Without end, and ahead of now as far as it may be.
    for at in 0..60 {
        let now_ns = NOW + at * SECOND / 100;
        let answer = &mut |page: &Page| {
            let row = |at: i64| {
                let ts_ns = if at % 2 == 0 { now_ns - 1_000 + at % 1_000 } else { page.until };
                vec![
                    Value::Text(format!("n{}", at % 1_000).into()),
                    Value::Integer(ts_ns),
                    Value::Text(format!("{at:0100}").into()),
                ]
            };
            let rows = (next..next + MOST as i64).map(row).collect();
            next += MOST as i64;
            Ok(Found { columns: columns.clone(), rows, more: true, coverage: Coverage::default() })
        };
        following.look(now_ns, answer).unwrap();
        assert!(following.seen.len() <= MOST_SEEN, "{}", following.seen.len());
    }
    assert!(following.start_ns > NOW, "its bound was reached");
    assert!(following.start_ns < NOW + 3 * SECOND, "it asks for what is of now");
    // And a mesh that is quiet again is followed as before.
    let mut mesh = Mesh::default();
    let now_ns = NOW + 600 * SECOND;
    mesh.add(now_ns, "honest", "one");
    following.at = None;
    assert_eq!(details(&mesh.look(&mut following, now_ns)), ["one"]);
    assert!(following.seen.len() < MOST_SEEN && mesh.look(&mut following, now_ns + SECOND).is_empty());
}

#[test]
fn a_page_goes_on_after_a_node_whatever_its_name() {
    let page = Page { after: (5, Some("it's".to_owned())), until: 9, without: Vec::new() };
    assert_eq!(page.condition(), "ts_ns >= 5 AND ts_ns <= 9 AND (ts_ns > 5 OR node > 'it''s')");
    let page = Page { after: (5, None), without: vec!["n1".to_owned()], ..page };
    assert_eq!(page.condition(), "ts_ns > 5 AND ts_ns <= 9 AND node <> 'n1'");
}
