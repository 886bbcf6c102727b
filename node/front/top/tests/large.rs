//! Drawing 8,192 ranks is cheap: only what is on the screen is made.

mod common;

use common::{data, look};
use nix::time::{ClockId, clock_gettime};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use top::{App, Colours, Key, View, draw};

/// The aim for the CPU time of a frame, milliseconds, which is printed and not judged here: how fast
/// it is depends on the build and the machine.
const MOST_MS: f64 = 20.0;

fn cpu_ms() -> f64 {
    let spent = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock");
    spent.tv_sec() as f64 * 1e3 + spent.tv_nsec() as f64 / 1e6
}

#[test]
fn a_frame_of_8192_ranks_is_drawn() {
    let mut data = data(8_192, 5_000, 240);
    let fresh = common::watched(8_192, 5_000);
    let mut terminal = Terminal::new(TestBackend::new(200, 60)).unwrap();
    for view in [View::Ranks, View::Heat, View::Nodes, View::Rank] {
        let mut app = App::at(view);
        let mut worst_ms: f64 = 0.0;
        for frame in 0..20u64 {
            // An agent sends a new state for each frame; taking it in is the fetcher's time.
            data.watch(fresh.clone(), frame);
            app.key(Key::PageDown, &data);
            let started = cpu_ms();
            terminal.draw(|frame| draw(frame, &mut app, &data, &look(false, Colours::Rgb), 1_000)).unwrap();
            // The first makes the buffers.
            if frame > 0 {
                worst_ms = worst_ms.max(cpu_ms() - started);
            }
        }
        println!("figure top_frame_8192_{} {worst_ms:.1} ms aim <= {MOST_MS}", view.name().replace(' ', "_"));
        let cells = terminal.backend().buffer().content();
        assert!(cells.iter().filter(|cell| cell.symbol() != " ").count() > 200, "{view:?} is empty");
    }
}
