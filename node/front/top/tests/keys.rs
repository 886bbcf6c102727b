//! Keys as a state machine, without a terminal.

mod common;

use common::{MS, NOW_NS, data, look, screen};
use top::{App, Colours, Data, Key, Overlay, View, Wish, slowest_of};

fn press(app: &mut App, keys: &str, data: &Data) -> Option<Wish> {
    keys.chars().fold(None, |_, key| app.key(Key::Char(key), data))
}

#[test]
fn views_are_reached_by_number_and_by_tab() {
    let data = data(16, 5, 20);
    let mut app = App::default();
    assert_eq!(app.view(), View::Ranks);
    for (at, view) in View::ALL.into_iter().enumerate() {
        press(&mut app, &(at + 1).to_string(), &data);
        assert_eq!(app.view(), view);
    }
    app.key(Key::Tab, &data);
    assert_eq!(app.view(), View::Verdict);
    app.key(Key::BackTab, &data);
    assert_eq!(app.view(), View::Services);
    app.key(Key::Char('9'), &data);
    assert_eq!(app.view(), View::Services);
}

#[test]
fn enter_leads_to_a_rank_and_escape_back() {
    let data = data(16, 5, 20);
    let mut app = App::default();
    // The worst is the first.
    assert_eq!(app.key(Key::Enter, &data), Some(Wish::Detail("gpu001".into(), 4_005, 5)));
    assert_eq!(app.view(), View::Rank);
    app.key(Key::Esc, &data);
    assert_eq!(app.view(), View::Ranks);
    app.key(Key::Down, &data);
    assert_eq!(app.key(Key::Enter, &data), Some(Wish::Detail("gpu000".into(), 4_000, 0)));
    app.key(Key::Esc, &data);
    press(&mut app, "3", &data);
    app.key(Key::End, &data);
    assert_eq!(app.key(Key::Enter, &data), Some(Wish::Detail("gpu003".into(), 4_015, 15)));
    app.key(Key::Esc, &data);
    assert_eq!(app.view(), View::Heat);
}

#[test]
fn a_filter_narrows_while_it_is_typed() {
    let data = data(16, 5, 20);
    let mut app = App::default();
    let shown = |app: &mut App| screen(app, &data, &look(true, Colours::None), (80, 24), 1_000);
    press(&mut app, "/gpu002", &data);
    let text = shown(&mut app);
    assert!(text.contains("filter: gpu002_") && text.contains("gpu002") && !text.contains("gpu003"), "{text}");
    // Characters that are keys elsewhere are text here.
    assert_eq!(app.key(Key::Char('q'), &data), None);
    app.key(Key::Backspace, &data);
    app.key(Key::Enter, &data);
    assert_eq!(app.key(Key::Enter, &data), Some(Wish::Detail("gpu002".into(), 4_008, 8)));
    app.key(Key::Esc, &data);
    app.key(Key::Esc, &data);
    assert!(shown(&mut app).contains("gpu003"), "escape clears it");
    press(&mut app, "/7", &data);
    app.key(Key::Enter, &data);
    assert_eq!(app.key(Key::Enter, &data), Some(Wish::Detail("gpu001".into(), 4_007, 7)), "a number is that rank");
}

#[test]
fn sorting_changes_the_order() {
    let data = data(16, 5, 20);
    let mut app = App::default();
    press(&mut app, "s", &data);
    assert_eq!(app.key(Key::Enter, &data), Some(Wish::Detail("gpu000".into(), 4_000, 0)), "by rank");
    app.key(Key::Esc, &data);
    press(&mut app, "ssss", &data);
    assert_eq!(app.key(Key::Enter, &data), Some(Wish::Detail("gpu001".into(), 4_005, 5)), "worst first again");
}

#[test]
fn time_goes_back_and_on_window_by_window() {
    let mut data = data(16, 5, 20);
    let mut app = App::default();
    let at = |windows: i64| Some(Wish::At(Some(NOW_NS - windows * 500 * MS)));
    assert_eq!(press(&mut app, "]", &data), None, "it is now");
    assert_eq!(press(&mut app, "[", &data), at(1));
    data.show_at = Some(NOW_NS - 500 * MS);
    assert_eq!(press(&mut app, "{", &data), at(11));
    data.show_at = Some(NOW_NS - 11 * 500 * MS);
    assert_eq!(press(&mut app, "}", &data), at(1));
    assert_eq!(press(&mut app, "]", &data), at(10));
    // Earlier than the windows that are there.
    data.show_at = Some(NOW_NS - 19 * 500 * MS);
    assert_eq!(press(&mut app, "{", &data), at(29));
    // Beyond the last window the time is now; stores have no now.
    data.show_at = Some(NOW_NS);
    assert_eq!(press(&mut app, "]", &data), Some(Wish::At(None)));
    assert_eq!(press(&mut app, "0", &data), Some(Wish::At(None)));
    data.is_stores = true;
    assert_eq!(press(&mut app, "]", &data), at(-1));
    assert_eq!(press(&mut app, "0", &data), None);
}

#[test]
fn sql_is_typed_asked_and_recalled() {
    let data = data(16, 5, 20);
    let mut app = App::default();
    press(&mut app, ":select 1;", &data);
    assert_eq!(app.key(Key::Enter, &data), Some(Wish::Ask("select 1".into())));
    assert_eq!(app.overlay(), &Overlay::Answer);
    assert_eq!(press(&mut app, "e", &data), Some(Wish::ExportAnswer));
    app.key(Key::Esc, &data);
    press(&mut app, ":", &data);
    app.key(Key::Up, &data);
    assert_eq!(app.key(Key::Enter, &data), Some(Wish::Ask("select 1".into())));
    app.key(Key::Esc, &data);
    press(&mut app, ":", &data);
    assert_eq!(app.key(Key::Enter, &data), None, "nothing was typed");
    assert_eq!(app.overlay(), &Overlay::None);
}

#[test]
fn the_sql_of_a_view_is_shown_and_copied() {
    let data = data(16, 5, 20);
    for view in 1..=8 {
        let mut app = App::default();
        press(&mut app, &view.to_string(), &data);
        let sql = app.sql(&data);
        assert_eq!(press(&mut app, "y", &data), Some(Wish::Copy(sql.clone())));
        assert!(sql.starts_with("SELECT") && matches!(app.overlay(), Overlay::Text(_, body) if *body == sql));
    }
}

#[test]
fn jobs_nodes_and_findings_lead_on() {
    let data = data(16, 5, 20);
    let mut app = App::default();
    press(&mut app, "5j", &data);
    assert_eq!(app.key(Key::Enter, &data), Some(Wish::Job(Some("815".into()))));
    assert_eq!(app.view(), View::Ranks);
    press(&mut app, "4j", &data);
    assert_eq!(app.key(Key::Enter, &data), None);
    assert_eq!(app.key(Key::Enter, &data), Some(Wish::Detail("gpu001".into(), 4_005, 5)), "the host's ranks");
    press(&mut app, "7", &data);
    app.key(Key::Esc, &data);
    press(&mut app, "7", &data);
    let mut app = App::at(View::Findings);
    assert_eq!(app.key(Key::Enter, &data), Some(Wish::At(Some(1_699_999_906_000_000_000))));
    assert_eq!(app.view(), View::Verdict);
}

#[test]
fn a_service_leads_to_its_slowest_requests() {
    let data = data(16, 5, 20);
    let mut app = App::default();
    press(&mut app, "8jj", &data);
    assert_eq!(app.view(), View::Services);
    press(&mut app, "/", &data);
    "gpu000".chars().for_each(|typed| drop(app.key(Key::Char(typed), &data)));
    app.key(Key::Enter, &data);
    assert_eq!(app.key(Key::Enter, &data), Some(Wish::Tail("chat".into())));
    assert!(matches!(app.overlay(), Overlay::Text(title, _) if *title == slowest_of("chat")));
}

#[test]
fn pause_export_suspend_and_quit() {
    let data = data(16, 5, 20);
    let mut app = App::default();
    press(&mut app, " ", &data);
    assert!(app.is_paused());
    assert!(screen(&mut app, &data, &look(true, Colours::None), (80, 24), 1_000).contains("PAUSED"));
    press(&mut app, " ", &data);
    assert!(!app.is_paused());
    assert_eq!(press(&mut app, "e", &data), Some(Wish::Export(View::Ranks)));
    assert_eq!(press(&mut app, "z", &data), Some(Wish::Suspend));
    assert_eq!(press(&mut app, "q", &data), Some(Wish::Quit));
    press(&mut app, "?", &data);
    assert_eq!(app.key(Key::Interrupt, &data), Some(Wish::Quit), "whatever lies over it");
}

#[test]
fn the_selection_stays_within_what_is_there() {
    let data = data(16, 5, 20);
    let mut app = App::default();
    app.key(Key::PageDown, &data);
    app.key(Key::PageDown, &data);
    app.key(Key::PageDown, &data);
    assert_eq!(app.key(Key::Enter, &data), Some(Wish::Detail("gpu003".into(), 4_015, 15)));
    app.key(Key::Esc, &data);
    app.key(Key::Home, &data);
    app.key(Key::Up, &data);
    assert_eq!(app.key(Key::Enter, &data), Some(Wish::Detail("gpu001".into(), 4_005, 5)));
    // No data at all.
    let nothing = Data::default();
    for view in "12345678".chars() {
        let mut app = App::default();
        press(&mut app, &view.to_string(), &nothing);
        for key in [Key::Enter, Key::Down, Key::End, Key::PageUp, Key::Char('['), Key::Char('}'), Key::Char('s')] {
            app.key(key, &nothing);
        }
    }
}
