//! The page, in a browser.

use std::path::PathBuf;

use crate::common::Lab;
use crate::common::chromium::Chromium;
use crate::{of_stores, stores};

#[test]
fn the_page_signs_in_by_its_link_shows_the_verdict_and_answers_sql() {
    const TEST: &str = "the_page_signs_in_by_its_link_shows_the_verdict_and_answers_sql";
    let lab = Lab::new();
    let server = of_stores(&stores(&lab));
    for path in ["/", "/page/main.js"] {
        let file = server.send("GET", path, &[], b"");
        assert_eq!(file.status, 200);
        let policy = file.header("content-security-policy").expect("a policy");
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    }
    let mut browser = match Chromium::open_url(&server.link, 1200, false) {
        Ok(browser) => browser,
        Err(why) => {
            eprintln!("skipped: {TEST}: {why}");
            return;
        }
    };
    browser.wait_until("document.getElementById('headline').textContent.includes('Rank 5 on host n1')");
    assert_eq!(browser.evaluate("location.hash + document.cookie + localStorage.length"), "0", "no secret stays");
    browser.wait_until("document.querySelector('#rank-table tbody td')?.textContent === '5'");
    // Others' words are text: a process called itself markup, and so does an answer.
    browser.evaluate("document.getElementById('tab-sql').click()");
    browser.evaluate(
        "(() => { const box = document.getElementById('question'); box.focus(); \
         box.value = \"SELECT rank, count(*) AS calls, '<img src=x onerror=alert(1)>' AS words FROM collectives GROUP BY rank ORDER BY rank\"; \
         box.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', ctrlKey: true, cancelable: true })); })()",
    );
    browser.wait_until("document.getElementById('answer').textContent.includes('<img src=x onerror=alert(1)>')");
    browser.wait_until("document.getElementById('coverage').textContent.startsWith('2 of 2 nodes answered')");
    assert_eq!(browser.evaluate("document.querySelectorAll('img').length"), 0);
    browser.evaluate("(() => { const kind = document.getElementById('chart-kind'); kind.value = 'bar'; kind.dispatchEvent(new Event('change')); })()");
    browser.wait_until("document.querySelector('#chart canvas') !== null");
    // A wrong question is reported as wrong.
    browser.evaluate("(() => { document.getElementById('question').value = 'SELECT nothing FROM collectives'; document.getElementById('ask').requestSubmit(); })()");
    browser.wait_until("document.getElementById('planned').textContent.includes('nothing')");
    // Words are completed from the schema.
    browser.wait_until("document.querySelectorAll('#schema details').length > 10");
    let completed = "(() => { const box = document.getElementById('question'); box.value = 'SELECT * FROM collec'; box.selectionStart = box.value.length; \
        box.dispatchEvent(new Event('input')); box.dispatchEvent(new KeyboardEvent('keydown', { key: 'Tab', cancelable: true })); return box.value; })()";
    assert_eq!(browser.evaluate(completed), "SELECT * FROM collectives");
    // The map has pixels, and the culprit's row another colour at its end than at its beginning.
    browser.evaluate("document.getElementById('tab-ranks').click()");
    browser.wait_until("document.getElementById('map-note').textContent.startsWith('8 ranks')");
    let colours = "(() => { const map = document.getElementById('map'), of = map.getContext('2d'); \
        return [0.05, 0.95].map((x) => [...of.getImageData(Math.floor(map.width * x), Math.floor(map.height / 16), 1, 1).data].join()); })()";
    browser.wait_until(&format!("(() => {{ const [a, b] = {colours}; return a !== b; }})()"));
    if let Some(dir) = std::env::var_os("RANKMESH_REPORT_OUT") {
        browser.screenshot(&PathBuf::from(dir).join("serve.png"));
    }
    // Nothing from elsewhere; refused requests of above are logged by the browser as errors of the
    // network.
    let own = format!("http://{}/", server.address);
    let wrong: Vec<String> = browser
        .complaints()
        .into_iter()
        .filter(|complaint| !complaint.contains(&own) && !complaint.contains("400 (Bad Request)"))
        .collect();
    assert_eq!(wrong, Vec::<String>::new());
    let refused = "new Promise((done) => { document.addEventListener('securitypolicyviolation', (event) => done(event.effectiveDirective)); \
        fetch('http://127.0.0.1:9/').catch(() => {}); })";
    assert_eq!(browser.evaluate(refused), "connect-src");
    // Without a network it reports that and goes on.
    browser.go_offline();
    browser.evaluate("(() => { document.getElementById('question').value = 'SELECT 1'; document.getElementById('ask').requestSubmit(); })()");
    browser.wait_until("document.getElementById('planned').textContent.length > 0");
}
