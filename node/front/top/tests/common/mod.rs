//! A job of some ranks of which one is late, as an agent would report it.

#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

use jiff::tz::TimeZone;
use model::Coverage;
use model::board::{BOARD_VERSION, Board, BoardRank, BoardWindow, Time};
use model::watch::{CulpritNow, JobNow, NodeNow, RankNow, WATCH_VERSION, Watched};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use top::{Answer, App, Colours, Data, Look, NodeSample, RankDetail, draw};

/// Some time in November 2023.
pub const NOW_NS: i64 = 1_700_000_000_000_000_000;
pub const MS: i64 = 1_000_000;

pub fn look(ascii: bool, colours: Colours) -> Look {
    Look { colours, ascii, zone: TimeZone::UTC }
}

pub fn node_of(rank: usize) -> String {
    format!("gpu{:03}", rank / 4)
}

pub fn watched(ranks: usize, late: usize) -> Watched {
    let row = |rank: usize| RankNow {
        rank: rank as i64,
        node: node_of(rank),
        pid: 4_000 + rank as i64,
        role: if rank == late { "culprit" } else { "victim" }.to_owned(),
        late_ns: Some(if rank == late { 61 * MS } else { rank as i64 % 7 * 100_000 }),
        wait_ns: Some(if rank == late { 0 } else { 60 * MS }),
        excess_ns: Some(if rank == late { 60 * MS } else { -3 * MS }),
        share: if rank == late { 0.412 } else { -0.002 },
        compute_excess_ns: Some(if rank == late { 59 * MS } else { 0 }),
        z: Some(if rank == late { 41.2 } else { 0.3 }),
        flagged: if rank == late { 19 } else { 0 },
        windows: 20,
        compute_share: None,
    };
    let mut rows: Vec<RankNow> = (0..ranks).map(row).collect();
    rows.sort_by(|a, b| b.share.total_cmp(&a.share).then(a.rank.cmp(&b.rank)));
    let job = JobNow {
        name: format!("job 812.0 ({ranks} ranks)"),
        id: Some("812.0".to_owned()),
        nranks: Some(ranks as i64),
        verdict: "rank".to_owned(),
        sentence: format!("Rank {late} on {} holds the job up: 41 % of its time is lost.", node_of(late)),
        is_ill: true,
        culprits: vec![CulpritNow {
            rank: late as i64,
            node: node_of(late),
            pid: Some(4_000 + late as i64),
            late_by_ns: Some(60 * MS),
            since_ns: Some(NOW_NS - 95_000 * MS),
            since_start: false,
            collectives: 940,
            last_in: 921,
        }],
        cause: Some("its CPU was taken by stress-ng (pid 991) for 57 ms of each step".to_owned()),
        gpu_seconds: Some(274.0),
        gpus_lost: Some(2.9),
        upper_bound: false,
        step_ns: Some(146 * MS),
        tier: 1,
        clock_bound_ns: Some(42_000),
        not_visible: vec!["collectives replayed from captured graphs".to_owned()],
        judge: Some("gpu001".to_owned()),
        until_ns: NOW_NS,
        age_ms: 600,
        ..JobNow::default()
    };
    let well = JobNow {
        name: "job 815 (16 ranks)".to_owned(),
        id: Some("815".to_owned()),
        nranks: Some(16),
        verdict: "none".to_owned(),
        sentence: "Nobody holds the job up.".to_owned(),
        step_ns: Some(1_230 * MS),
        tier: 1,
        ..JobNow::default()
    };
    let node = |at: usize| NodeNow {
        name: format!("gpu{at:03}"),
        state: if at == 2 { "dead" } else { "live" }.to_owned(),
        recording: "on".to_owned(),
        ranks: (0..4).map(|rank| (4 * at + rank) as u32).collect(),
        rows: Some(1_234_567),
        span_ns: Some((NOW_NS - 7_260_000 * MS, NOW_NS)),
        clock_bound_ns: (at != 2).then_some(38_000),
        version: "0.1.0".to_owned(),
        is_self: at == 0,
    };
    Watched {
        version: WATCH_VERSION,
        agent: "gpu000".to_owned(),
        at_ns: NOW_NS,
        jobs: vec![job.clone(), well],
        job: Some(job),
        ranks: rows,
        brief: None,
        nodes: (0..ranks.div_ceil(4).max(3)).map(node).collect(),
        coverage: Coverage { asked: 2, answered: 2, ..Coverage::default() },
        own: None,
    }
}

/// Windows of half a second, the last ends now; the late rank is late from the middle on.
pub fn board(ranks: usize, late: usize, windows: usize) -> Board {
    let window = |at: usize| {
        let us = |of: &dyn Fn(usize) -> i64| (0..ranks).map(|rank| Time::of_ns(Some(of(rank) * 1_000))).collect();
        let is_late = |rank: usize| rank == late && at >= windows / 2;
        BoardWindow {
            end_ns: NOW_NS - ((windows - 1 - at) as i64) * 500 * MS,
            collectives: 3,
            late: us(&|rank| if is_late(rank) { 183_000 } else { (rank as i64 * 37 + at as i64 * 11) % 9 * 1_000 }),
            wait: us(&|rank| if is_late(rank) { 0 } else { 180_000 }),
            compute: us(&|rank| if is_late(rank) { 430_000 } else { 250_000 }),
        }
    };
    let rank = |rank: usize| BoardRank { rank: rank as i32, node: node_of(rank), pid: 4_000 + rank as i64 };
    Board {
        version: BOARD_VERSION,
        epoch: 1,
        clock_bound_ns: Some(42_000),
        window_ns: 500 * MS,
        ranks: (0..ranks).map(rank).collect(),
        windows: (0..windows).map(window).collect(),
        ..Board::default()
    }
}

pub fn data(ranks: usize, late: usize, windows: usize) -> Data {
    let mut data = Data::of("the agent of this host".to_owned(), false);
    data.watch(watched(ranks, late), 1_000);
    data.board(board(ranks, late, windows));
    let sample = NodeSample {
        cpu: Some(0.83),
        gpus: 4,
        sm_mhz: Some(1_980.0),
        sm_most_mhz: Some(1_980.0),
        ..NodeSample::default()
    };
    data.samples.insert("gpu000".to_owned(), sample.clone());
    let throttled =
        NodeSample { sm_mhz: Some(1_155.0), throttled: "sw_thermal_slowdown".to_owned(), lost: Some(12), ..sample };
    data.samples.insert("gpu001".to_owned(), throttled);
    let row = |cells: [&str; 7]| cells.map(str::to_owned).to_vec();
    data.findings = Answer {
        columns: ["ts_ns", "verdict", "rank", "culprit_node", "lateness_ns", "cost_gpu_s", "cause"]
            .map(str::to_owned)
            .to_vec(),
        rows: vec![
            row(["1699999906000000000", "rank", "5", "gpu001", "60000000", "12.5", "its CPU was taken"]),
            row(["1699999000000000000", "none", "", "", "", "", ""]),
        ],
        ..Answer::default()
    };
    let row = |cells: [&str; 9]| cells.map(str::to_owned).to_vec();
    data.services = Answer {
        rows: vec![
            row(["chat", "gpu000", "1234567", "12", "5023456.5", "7000000", "84912345.25", "85000000", "91000000"]),
            row(["chat", "gpu001", "9876", "0", "4900000", "6900000", "12000000", "20000000", "20000000"]),
            row(["embed\u{1b}[2J", "gpu001", "3", "3", "", "", "", "", ""]),
        ],
        ..Answer::default()
    };
    data.detail = Some(RankDetail {
        of: (node_of(late), 4_000 + late as i64),
        times: vec![
            ("off the CPU: preempted".to_owned(), 23_400 * MS, 411),
            ("in all_reduce".to_owned(), 4_100 * MS, 411),
        ],
        process: vec![("exe".to_owned(), "/usr/bin/python3".to_owned()), ("user".to_owned(), "anna".to_owned())],
        stack: vec!["1 rank: main > train_step (train.py:142) > forward (model.py:77)".to_owned()],
        missing: vec![],
    });
    data
}

/// The screen as text.
pub fn screen(app: &mut App, data: &Data, look: &Look, (width, height): (u16, u16), now_ms: u64) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal in memory");
    terminal.draw(|frame| draw(frame, app, data, look, now_ms)).expect("it is drawn");
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for y in 0..height {
        let row: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}
