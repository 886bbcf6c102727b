#![allow(clippy::unwrap_used, reason = "tests only")]

use model::board::{BoardRank, BoardWindow, Time};
use verdicts::{CommReport, Evidence};

use super::*;

const HOSTILE: &str = "</script><script>alert(1)</script><img src=x onerror=alert(1)>";

fn page() -> Page {
    let ranks = 8;
    let window = |number: i64| BoardWindow {
        end_ns: 1_000_000_000 * (number + 1),
        collectives: 5,
        late: (0..ranks).map(|rank| Time::of_ns(Some(if rank == 5 { 90_000_000 } else { 1_000 }))).collect(),
        wait: vec![Time::of_ns(Some(5_000)); ranks],
        compute: vec![Time::UNKNOWN; ranks],
    };
    Page {
        job: HOSTILE.into(),
        asked_of: HOSTILE.into(),
        span_ns: (0, 60_000_000_000),
        verdict: Some(Report {
            evidence: Evidence { not_visible: vec![HOSTILE.into()], ..Evidence::default() },
            per_comm: vec![CommReport::default()],
            ..Report::default()
        }),
        text: format!("Rank 5 on {HOSTILE} holds up the others.\nCost: much.\n\nTables."),
        found: Some(Explanation {
            cause: Some(HOSTILE.into()),
            changed: vec![HOSTILE.into()],
            ..Explanation::default()
        }),
        board: Some(Board {
            window_ns: 1_000_000_000,
            clock_bound_ns: Some(1_000),
            ranks: (0..8)
                .map(|rank| BoardRank { rank, node: format!("n{}{HOSTILE}", rank / 4), pid: 100 + i64::from(rank) })
                .collect(),
            windows: (0..60).map(window).collect(),
            ..Board::default()
        }),
        steps: vec![Step {
            collective: HOSTILE.into(),
            by_ends: true,
            ranks: vec![
                Lane {
                    rank: 5,
                    node: HOSTILE.into(),
                    pid: 100,
                    entry_ns: 200,
                    duration_ns: 10,
                    bound_ns: Some(3),
                    own_ns: Some(150),
                },
                Lane {
                    rank: 1,
                    node: "n0".into(),
                    pid: 1,
                    entry_ns: 100,
                    duration_ns: 110,
                    bound_ns: None,
                    own_ns: None,
                },
            ],
            events: vec![Seen { node: HOSTILE.into(), pid: 100, at_ns: 60, duration_ns: 100, what: HOSTILE.into() }],
        }],
        findings: vec![Mark { since_ns: 5, until_ns: 9_000_000_000, node: "n0".into(), text: HOSTILE.into() }],
        marks: vec![Mark { since_ns: 5, until_ns: 5, node: "n0".into(), text: HOSTILE.into() }],
        asked: vec![Asked {
            title: HOSTILE.into(),
            sql: format!("SELECT '{HOSTILE}'"),
            columns: vec![HOSTILE.into()],
            rows: vec![vec![Value::Text(b"=1+1".to_vec())]],
        }],
        services: vec![ServiceChapter {
            name: HOSTILE.into(),
            lead: vec![HOSTILE.into()],
            hosts: Asked {
                columns: vec![HOSTILE.into()],
                rows: vec![vec![Value::Text(HOSTILE.into())]],
                ..Asked::default()
            },
            excess: Some(HOSTILE.into()),
            beyond: vec![HOSTILE.into()],
            examples: vec![Chain { head: HOSTILE.into(), links: vec![HOSTILE.into()] }],
            ..ServiceChapter::default()
        }],
        lacking: vec![("x".into(), HOSTILE.into())],
        ..Page::default()
    }
}

#[test]
fn hostile_names_are_text_wherever_they_stand() {
    let html = render(&page());
    assert!(!html.contains("<img"), "a name became markup");
    assert_eq!(html.matches("<script").count(), 2, "the values and the script");
    assert_eq!(html.matches("</script>").count(), 2);
    assert!(html.contains("&lt;img src=x onerror=alert(1)&gt;"));
    assert!(html.contains("&quot;&#39;=1+1&quot;"), "a formula is led by an apostrophe");
}

#[test]
fn nothing_is_loaded_and_the_policy_names_what_is_there() {
    let html = render(&page());
    for word in ["http://", "https://", "src=\"", "@import", "url(", "style=\"", "onclick"] {
        assert!(!html.contains(word), "{word}");
    }
    let policy = html.split("content=\"").nth(1).unwrap().split('"').next().unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    assert!(html.find("Content-Security-Policy").unwrap() < html.find("<style").unwrap());
}

#[test]
fn the_worst_rank_is_first_in_table_and_map_and_missing_parts_are_listed() {
    let html = render(&page());
    let first = html.split("<tbody>").nth(1).unwrap();
    assert!(first.trim_start().starts_with("<tr><th scope=\"row\" class=\"n\">5</th>"), "{}", &first[..80]);
    let values = heat::values(&page());
    assert_eq!(values["ranks"][0][0], 5);
    let late = STANDARD.decode(values["late"].as_str().unwrap()).unwrap();
    assert_eq!(late.len(), 8 * 60 * 2);
    assert_ne!(late[..2], late[2 * 60..2 * 60 + 2]);
    let nothing = render(&Page::default());
    assert!(
        nothing.contains("There is no verdict of this time. Give one in which a job ran")
            && nothing.contains("nothing was recorded that tells"),
        "{nothing}"
    );
    assert!(render(&Page { lacking: vec![("steps".into(), "timeout".into())], ..page() }).contains("steps: timeout"));
}

#[test]
fn without_a_job_the_page_is_on_services() {
    let html = render(&Page { without_job: true, ..page() });
    assert!(html.contains("<h1>Services</h1>") && html.contains("href=\"#services\">To the first part"), "{html}");
    assert!(html.contains("id=\"nodes\"") && !html.contains("id=\"verdict\"") && !html.contains("id=\"heat\""));
    assert!(html.contains("Findings: what agents said") && html.contains("x: &lt;/script&gt;"), "{html}");
    assert!(!render(&Page::default()).contains("id=\"services\""), "a job's page without servers has no such part");
}

#[test]
fn an_hour_of_64_ranks_is_below_two_megabytes() {
    let mut page = page();
    let board = page.board.as_mut().unwrap();
    board.ranks = (0..64)
        .map(|rank| BoardRank { rank, node: format!("node-{:03}", rank / 8), pid: 100_000 + i64::from(rank) })
        .collect();
    let times =
        |number: i64| (0..64).map(|rank| Time::of_ns(Some((number * 7_919 + rank * 104_729) % 50_000_000))).collect();
    board.window_ns = 3_000_000_000;
    board.windows = (0..1_200)
        .map(|number| BoardWindow {
            end_ns: (number + 1) * 3_000_000_000,
            collectives: 9,
            late: times(number),
            wait: times(number + 1),
            compute: times(number + 2),
        })
        .collect();
    let html = render(&page);
    assert!(html.len() < 1_200_000, "{}", html.len());
}

#[test]
fn dates_are_those_of_the_calendar() {
    for (unix_s, shown) in [
        (0, "1970-01-01 00:00:00"),
        (951_782_400, "2000-02-29 00:00:00"),
        (1_767_225_599, "2025-12-31 23:59:59"),
        (4_107_542_400, "2100-03-01 00:00:00"),
    ] {
        assert_eq!(sections::date(unix_s * 1_000_000_000), shown);
    }
}
