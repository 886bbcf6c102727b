//! Each view in two sizes and in ASCII, as pictures of text; with dead, stale, hostile or missing
//! data.

mod common;

use model::Missing;
use model::board::Time;
use top::{Answer, App, Colours, Data, Key, View, plain};

use common::{MS, board, data, look, screen, watched};

const SMALL: (u16, u16) = (80, 24);
const LARGE: (u16, u16) = (120, 40);

fn app(view: View, data: &Data) -> App {
    let mut app = App::default();
    let key = char::from_digit(View::ALL.iter().position(|of| *of == view).expect("it is one of all") as u32 + 1, 10)
        .expect("a digit");
    app.key(Key::Char(key), data);
    app
}

#[test]
fn each_view_in_two_sizes_and_in_ascii() {
    let data = data(16, 5, 240);
    for view in View::ALL {
        let name = view.name().replace(' ', "_");
        let shown = |size, ascii: bool| screen(&mut app(view, &data), &data, &look(ascii, Colours::None), size, 1_200);
        insta::assert_snapshot!(format!("{name}_80x24"), shown(SMALL, false));
        insta::assert_snapshot!(format!("{name}_120x40"), shown(LARGE, false));
        let ascii = shown(SMALL, true);
        assert!(ascii.is_ascii(), "{ascii}");
        insta::assert_snapshot!(format!("{name}_ascii"), ascii);
    }
}

#[test]
fn help_and_answers_lie_over_the_view() {
    let mut data = data(16, 5, 240);
    let mut app = App::default();
    app.key(Key::Char('?'), &data);
    insta::assert_snapshot!("help", screen(&mut app, &data, &look(true, Colours::None), SMALL, 1_200));
    app.key(Key::Esc, &data);
    app.key(Key::Char('y'), &data);
    insta::assert_snapshot!("sql_of_view", screen(&mut app, &data, &look(true, Colours::None), SMALL, 1_200));
    app.key(Key::Esc, &data);
    app.key(Key::Char(':'), &data);
    "select 1".chars().for_each(|typed| drop(app.key(Key::Char(typed), &data)));
    insta::assert_snapshot!("typing", screen(&mut app, &data, &look(true, Colours::None), SMALL, 1_200));
    app.key(Key::Enter, &data);
    data.answer = Some(Answer {
        sql: "select 1".to_owned(),
        columns: vec!["node".to_owned(), "n".to_owned()],
        rows: vec![vec!["gpu000".to_owned(), "1".to_owned()], vec!["gpu001".to_owned(), "22".to_owned()]],
        notes: vec!["2 rows in 3.1 ms".to_owned(), "2 of 2 nodes answered".to_owned()],
    });
    insta::assert_snapshot!("answer", screen(&mut app, &data, &look(true, Colours::None), SMALL, 1_200));
}

#[test]
fn the_heat_map_goes_by_waits_where_clocks_are_not_known() {
    let mut data = data(16, 5, 240);
    let mut unknown = board(16, 5, 240);
    (unknown.epoch, unknown.clock_bound_ns) = (2, None);
    // Entries of other hosts are off by what their clocks are off: they say nothing.
    for window in &mut unknown.windows {
        window.late.iter_mut().take(4).for_each(|late| *late = Time::of_ns(Some(400 * MS)));
    }
    data.board(unknown);
    let mut shown = app(View::Heat, &data);
    insta::assert_snapshot!(
        "heat_map_clocks_unknown",
        screen(&mut shown, &data, &look(true, Colours::None), SMALL, 1_200)
    );
    let ranks = screen(&mut App::default(), &data, &look(true, Colours::None), SMALL, 1_200);
    let minute = |rank: &str| {
        ranks
            .lines()
            .find(|line| line.trim_start().starts_with(&format!("{rank} gpu")))
            .and_then(|line| line.chars().last())
    };
    assert_eq!((minute("5"), minute("1")), (Some('+'), Some('_')), "{ranks}");
    for figure in ["waiting above", "compute time above", "lateness above", "waiting below"] {
        shown.key(Key::Char('m'), &data);
        let screen = screen(&mut shown, &data, &look(true, Colours::None), SMALL, 1_200);
        assert!(screen.contains(figure), "{screen}");
        assert_eq!(screen.contains("clocks unknown, by host"), figure.starts_with("late"), "{screen}");
    }
}

#[test]
fn what_is_old_says_so() {
    let mut data = data(16, 5, 240);
    let shown = |data: &Data, now_ms| screen(&mut App::default(), data, &look(true, Colours::None), SMALL, now_ms);
    assert!(shown(&data, 1_500).contains("live, 1.1 s old"));
    let stale = shown(&data, 8_000);
    assert!(stale.contains("STALE: nothing came for 7 s") && !stale.contains("live"), "{stale}");
    data.error = Some("no agent answers on /run/x".to_owned());
    assert!(shown(&data, 8_000).contains("STALE: no agent answers for 7 s"));
    data.error = None;
    let mut judged_long_ago = watched(16, 5);
    judged_long_ago.job.as_mut().unwrap().age_ms = 12_000;
    data.watch(judged_long_ago, 1_000);
    assert!(shown(&data, 1_500).contains("OLD verdict, 12.5 s old"));
    data.show_at = Some(common::NOW_NS - 60_000 * common::MS);
    assert!(shown(&data, 9_000_000).contains("PAST 11-14 22:12:20"));
    data.error = Some("timeout".to_owned());
    assert!(shown(&data, 9_000_000).contains("NOT FOUND: 11-14 22:12:20"));
}

#[test]
fn nothing_yet_and_nobody_there_say_so() {
    let mut data = Data::of("the agent of this host".to_owned(), false);
    let shown = |data: &Data| screen(&mut App::default(), data, &look(true, Colours::None), SMALL, 0);
    assert!(shown(&data).contains("asking the agent of this host"));
    data.error = Some("no agent answers on /run/x; start one with `rankmesh up`".to_owned());
    assert!(shown(&data).contains("no agent answers on /run/x; start one"));
    data.error = None;
    let mut nobody = watched(16, 5);
    (nobody.job, nobody.jobs, nobody.ranks) = (None, Vec::new(), Vec::new());
    nobody.coverage.missing.push(Missing { node: "gpu9".to_owned(), reason: "dead".to_owned() });
    data.watch(nobody, 0);
    for view in View::ALL {
        assert!(
            screen(&mut app(view, &data), &data, &look(true, Colours::None), SMALL, 0).contains("No verdict stands")
        );
    }
    for node in data.watched.iter_mut().flat_map(|watched| &mut watched.nodes) {
        node.recording = "off".to_owned();
    }
    let silent = shown(&data);
    assert!(silent.contains("no node records") && silent.contains("rankmesh check"), "{silent}");
}

#[test]
fn hostile_names_are_shown_and_not_obeyed() {
    let evil = "n\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\u{202e}";
    let mut data = data(8, 5, 20);
    let mut hostile = watched(8, 5);
    hostile.agent = evil.to_owned();
    for job in hostile.job.iter_mut().chain(&mut hostile.jobs) {
        (job.name, job.sentence, job.cause) = (evil.to_owned(), format!("{evil}\n{evil}"), Some(evil.to_owned()));
        job.culprits.iter_mut().for_each(|culprit| culprit.node = evil.to_owned());
        (job.not_visible, job.notes) = (vec![evil.to_owned()], vec![evil.to_owned()]);
    }
    hostile.ranks.iter_mut().for_each(|rank| rank.node = evil.to_owned());
    for node in &mut hostile.nodes {
        (node.name, node.recording, node.version, node.state) = (evil.into(), evil.into(), evil.into(), evil.into());
    }
    data.watch(hostile, 0);
    data.findings.rows = vec![vec![evil.to_owned(); 7]];
    data.answer = Some(Answer {
        sql: evil.to_owned(),
        columns: vec![evil.to_owned()],
        rows: vec![vec![evil.to_owned()]],
        notes: vec![evil.to_owned()],
    });
    let detail = data.detail.as_mut().unwrap();
    detail.of = (evil.to_owned(), 4_005);
    (detail.stack, detail.missing) = (vec![evil.to_owned()], vec![evil.to_owned()]);
    detail.process = vec![(evil.to_owned(), evil.to_owned())];
    detail.times = vec![(evil.to_owned(), 1, 1)];
    data.error = Some(evil.to_owned());
    for view in View::ALL {
        for size in [SMALL, LARGE] {
            let mut app = app(view, &data);
            let text = screen(&mut app, &data, &look(false, Colours::Rgb), size, 0);
            assert!(!text.chars().any(|c| c != '\n' && (c.is_control() || c == '\u{202e}')), "{view:?}: {text:?}");
            app.key(Key::Char(':'), &data);
            app.key(Key::Char('x'), &data);
            app.key(Key::Enter, &data);
            let text = screen(&mut app, &data, &look(false, Colours::Rgb), size, 0);
            assert!(!text.chars().any(|c| c != '\n' && (c.is_control() || c == '\u{202e}')), "{view:?}: {text:?}");
        }
    }
}

#[test]
fn any_size_is_drawn() {
    let data = data(16, 5, 240);
    for (width, height) in [(1, 1), (10, 3), (39, 24), (40, 10), (41, 11), (80, 10), (300, 12), (60, 200)] {
        for view in View::ALL {
            let mut app = app(view, &data);
            screen(&mut app, &data, &look(false, Colours::Ansi), (width, height), 1_200);
            app.key(Key::Char('?'), &data);
            screen(&mut app, &data, &look(false, Colours::Ansi), (width, height), 1_200);
        }
    }
}

#[test]
fn without_a_terminal_it_is_lines_of_text() {
    let data = data(16, 5, 240);
    let text = plain(&mut App::default(), &data, &look(true, Colours::None), 100, 1_000);
    assert!(text.lines().count() >= 21, "{text}");
    assert!(text.contains("Rank 5 on gpu001 holds the job up") && text.contains("CULPRIT"), "{text}");
    assert!(text.lines().all(|line| line.len() <= 100));
}
