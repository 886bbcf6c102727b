//! `rankmesh report`: the page of a job that has ended, made from its stores, in a real browser.

mod common;

use std::path::{Path, PathBuf};

use common::chromium::Chromium;
use common::job_stores::{EndedJob, HOSTILE};
use common::{Lab, run, stderr};

/// A page of a job of which rank 5 is late; where `RANKMESH_REPORT_OUT` names a directory, what is
/// seen of it is left there.
fn page(lab: &Lab, job: EndedJob) -> PathBuf {
    let (dir, out) = (lab.path("job"), lab.path("job.html"));
    std::fs::create_dir(&dir).expect("a directory");
    job.write(&dir);
    make(&dir, &out, 0);
    if let Some(to) = kept("page.html") {
        std::fs::copy(&out, to).expect("a copy");
    }
    out
}

fn make(dir: &Path, out: &Path, code: i32) -> String {
    let (db, to) = (dir.display().to_string(), out.display().to_string());
    let output = run(&["report", "--db", &db, "-o", &to, "--timeout", "60s", "--gpu-hour", "2EUR"]);
    assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
    stderr(&output)
}

fn kept(name: &str) -> Option<PathBuf> {
    std::env::var_os("RANKMESH_REPORT_OUT").map(|dir| PathBuf::from(dir).join(name))
}

#[test]
fn a_page_has_verdict_ranks_steps_and_cause_as_text() {
    let lab = Lab::new();
    let out = page(&lab, EndedJob::small());
    let html = std::fs::read_to_string(&out).expect("the page");
    assert!(!html.contains("<img"), "a process named itself {HOSTILE}");
    for words in [
        "Job 4711",
        "Rank 5 on host n1 holds up the other 7 ranks",
        "preempted (&lt;img src=x onerror=alert(1)&gt;)",
        "epoch 2 &lt;img",
        "2 of 2 nodes answered",
        "FROM lateness(",
        "cpu_stolen",
    ] {
        assert!(html.contains(words), "{words}");
    }
    assert_eq!(html.matches("<svg class=\"lanes\"").count(), 3, "three steps");
    assert!(html.contains("class=\"event\"") && html.contains("class=\"finding\"") && html.contains("class=\"mark\""));
    let body = html.split("id=\"rank-table\"").nth(1).expect("the table");
    let first = body.split("<tbody>").nth(1).expect("rows").trim_start();
    assert!(first.starts_with("<tr class=\"named\"><th scope=\"row\" class=\"n\">5</th>"), "{}", &first[..120]);
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(std::fs::metadata(&out).expect("there").permissions().mode() & 0o777, 0o600);
}

#[test]
fn services_are_a_chapter_and_without_a_job_the_page() {
    let lab = Lab::new();
    let job = EndedJob { steps: 60, serves: true, ..EndedJob::small() };
    let html = std::fs::read_to_string(page(&lab, job)).expect("the page");
    let (of_job, services) = html.split_once("<section id=\"services\"").expect("the chapter");
    assert!(of_job.contains("Rank 5 on host n1 holds up the other 7 ranks"), "{html}");
    for words in
        ["<h3>chat</h3>", "What the slowest have more of", "asleep in a timer", "<li>80.0ms asleep", "GET /slow"]
    {
        assert!(services.contains(words), "{words}: {services}");
    }
    assert!(!html.contains("<img"), "a thread named itself {HOSTILE}");
    // Before the job there were requests only.
    let (db, out) = (lab.path("job").display().to_string(), lab.path("services.html"));
    let until = job.from_ns.to_string();
    let since = (job.from_ns - 30_000_000_000).to_string();
    let output = run(&["report", "--db", &db, "-o", &out.display().to_string(), "--between", &since, &until]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let html = std::fs::read_to_string(&out).expect("the page");
    assert!(html.contains("<h1>Services</h1>") && html.contains("<h3>chat</h3>"), "{html}");
    assert!(!html.contains("id=\"verdict\"") && html.contains("2 of 2 nodes answered"), "{html}");
}

#[test]
fn a_store_that_cannot_be_read_is_a_missing_node_on_the_page() {
    let lab = Lab::new();
    let out = page(&lab, EndedJob { steps: 40, ..EndedJob::small() });
    let dir = lab.path("job");
    std::fs::write(dir.join("n2.db"), b"no database").expect("written");
    let printed = make(&dir, &out, 3);
    assert!(printed.contains("missing n2: "), "{printed}");
    let html = std::fs::read_to_string(&out).expect("the page");
    assert!(html.contains("Missing nodes") && html.contains("PARTIAL: 2 of 3 nodes answered"), "{html}");
    // Where there is nothing nothing is written.
    let (empty, nothing) = (lab.path("empty"), lab.path("nothing.html"));
    std::fs::create_dir(&empty).expect("a directory");
    make(&empty, &nothing, 1);
    assert!(!nothing.exists());
}

#[test]
fn in_a_browser_the_map_is_drawn_nothing_fails_and_nothing_is_loaded() {
    const TEST: &str = "in_a_browser_the_map_is_drawn_nothing_fails_and_nothing_is_loaded";
    let lab = Lab::new();
    let out = page(&lab, EndedJob::small());
    for (name, width, dark) in [("light", 1200, false), ("dark", 1200, true), ("narrow", 390, false)] {
        let mut browser = match Chromium::open(&out, width, dark) {
            Ok(browser) => browser,
            Err(why) => {
                eprintln!("skipped: {TEST}: {why}");
                return;
            }
        };
        if let Some(to) = kept(&format!("{name}.png")) {
            browser.screenshot(&to);
        }
        assert_eq!(browser.complaints(), Vec::<String>::new(), "{name}");
        // The page does not scroll sideways, the culprit is on top.
        assert_eq!(browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), true, "{name}");
        assert_eq!(browser.evaluate("document.querySelector('#rank-table tbody tr').cells[0].textContent"), "5");
        let lines = browser.evaluate(
            "new Set([...document.querySelector('.headline strong').getClientRects()].map((box) => Math.round(box.top))).size",
        );
        assert!((1..=3).contains(&lines.as_i64().expect("lines")), "{name}: {lines}");
        let painted = "(() => { const of = document.getElementById('map-labels'); \
            return [...of.getContext('2d').getImageData(0, 0, of.width, of.height).data].some((byte) => byte > 0); })()";
        assert_eq!(browser.evaluate(painted), true, "{name}: names of ranks");
        let legend = "document.querySelector('.scale').textContent";
        let legend = browser.evaluate(legend).as_str().expect("text").to_owned();
        assert!(legend.starts_with("Colour: the others waited longer by 0 ns"), "{name}: {legend}");
        // Of the culprit's row, which is the first, the second half has another colour than its
        // beginning and than the other rows.
        let colours = "(() => { const map = document.getElementById('map'), of = map.getContext('2d'), \
            at = (x, row) => [...of.getImageData(Math.floor(map.width * x), Math.floor((row + 0.5) * map.height / 8), 1, 1).data].join(); \
            return [at(0.9, 0), at(0.1, 0), at(0.9, 4)]; })()";
        let colours = browser.evaluate(colours);
        let rgb = |at: usize| -> Vec<i64> {
            colours[at]
                .as_str()
                .expect("a pixel")
                .split(',')
                .take(3)
                .map(|part| part.parse().expect("a colour"))
                .collect()
        };
        let apart = |a: usize, b: usize| -> i64 { rgb(a).iter().zip(rgb(b)).map(|(a, b)| (a - b).abs()).sum() };
        assert!(apart(0, 1) > 100 && apart(0, 2) > 100 && apart(1, 2) < 60, "{name}: {colours}");
        if name == "light" {
            used(&mut browser);
            let pdf = browser.pdf();
            if let Some(to) = kept("page.pdf") {
                std::fs::write(to, &pdf).expect("written");
            }
            assert_eq!(pages(&pdf), 2, "on paper");
        }
    }
}

/// Keys, sorting, filtering; and that not even a script could load or run what is not there.
fn used(browser: &mut Chromium) {
    let key = |key: &str| {
        format!(
            "document.getElementById('map').dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}', cancelable: true}}))"
        )
    };
    browser.evaluate("document.getElementById('map').focus()");
    for pressed in ["ArrowDown", "End", "ArrowLeft"] {
        browser.evaluate(&key(pressed));
    }
    let cell = browser.evaluate("document.getElementById('cell').textContent");
    let cell = cell.as_str().expect("text");
    assert!(cell.contains("rank 5 on n1") && cell.contains("late by") && cell.contains("UTC"), "{cell}");
    let sorted = "(() => { const head = document.querySelector('#rank-table thead th'); head.querySelector('button').click(); \
        const once = [head.getAttribute('aria-sort'), document.querySelector('#rank-table tbody tr').cells[0].textContent]; \
        head.querySelector('button').click(); \
        return once.concat(head.getAttribute('aria-sort'), document.querySelector('#rank-table tbody tr').cells[0].textContent); })()";
    assert_eq!(browser.evaluate(sorted), serde_json::json!(["descending", "7", "ascending", "0"]));
    let filtered = "(() => { const filter = document.getElementById('filter'); filter.value = 'n1'; filter.dispatchEvent(new Event('input')); \
        const left = [...document.querySelectorAll('#rank-table tbody tr')].filter((row) => !row.hidden).length; \
        filter.value = ''; filter.dispatchEvent(new Event('input')); return left; })()";
    assert_eq!(browser.evaluate(filtered), 4);
    // Every control has a name, every table a caption, and headings go down without a gap.
    let named = "[...document.querySelectorAll('table')].every((table) => table.caption) && \
        [...document.querySelectorAll('svg, canvas:not([aria-hidden])')].every((drawn) => drawn.getAttribute('role') === 'img' && \
            (drawn.getAttribute('aria-label') || document.getElementById(drawn.getAttribute('aria-labelledby')).textContent)) && \
        document.querySelectorAll('header, main, footer, nav[aria-label]').length === 4 && document.querySelectorAll('h1').length === 1";
    assert_eq!(browser.evaluate(named), true);
    assert_eq!(browser.complaints(), Vec::<String>::new());
    let refused = "new Promise((done) => { document.addEventListener('securitypolicyviolation', (event) => done(event.effectiveDirective)); \
        new Image().src = 'http://127.0.0.1:9/x.png'; })";
    assert_eq!(browser.evaluate(refused), "img-src");
    let script = "new Promise((done) => { document.addEventListener('securitypolicyviolation', (event) => done(event.effectiveDirective)); \
        const more = document.createElement('script'); more.textContent = 'window.ran = true'; document.body.append(more); })";
    assert_eq!(browser.evaluate(script), "script-src-elem");
    assert_eq!(browser.evaluate("window.ran === undefined"), true);
}

/// Pages of a PDF: objects of that type.
fn pages(pdf: &[u8]) -> usize {
    let text = String::from_utf8_lossy(pdf);
    text.match_indices("/Type /Page").filter(|(at, found)| !text[at + found.len()..].starts_with('s')).count()
}
