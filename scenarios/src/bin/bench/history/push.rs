//! Many agents' stores get rows at a rate while their processes push them into ClickHouse's engine
//! (chDB) behind the tests' HTTP front, which is gone for a while: what is carried, how far behind
//! it is, what is lost or doubled.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use node_bpf::Record;
use scenarios::agents::binary;
use scenarios::figures::figure;
use scenarios::jobs::Job;
use store::{Store, StoreConfig};

use super::{Arguments, call};

/// Time between two batches of rows.
const TICK: Duration = Duration::from_millis(100);
/// How long the server may take to have all rows.
const DRAIN: Duration = Duration::from_secs(1800);
const FRONT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../node/tests/history/clickhouse_server.py");

struct Server<'p> {
    python: &'p Path,
    dir: &'p Path,
    port: u16,
}

impl Server<'_> {
    fn start(&self) -> anyhow::Result<Job> {
        let log = std::fs::File::create(self.dir.join("server.log"))?;
        let mut command = Command::new(self.python);
        command.arg(FRONT).arg(self.port.to_string()).arg(self.dir).stdout(Stdio::null()).stderr(log);
        let child = Job(command.spawn().context("starting the server")?);
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            ensure!(began.elapsed() < Duration::from_secs(120), "the server does not answer");
            std::thread::sleep(TICK);
        }
        Ok(child)
    }

    /// The first value of an answer.
    fn sql(&self, sql: &str) -> anyhow::Result<Vec<i64>> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        write!(
            stream,
            "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-ClickHouse-User: pusher\r\nX-ClickHouse-Key: hush-hush\r\n\
             Content-Length: {}\r\n\r\n{sql}",
            sql.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        ensure!(answer.starts_with("HTTP/1.1 200"), "{sql}: {answer}");
        let body = answer.split_once("\r\n\r\n").context("a body")?.1;
        let Some(row) = body.lines().next() else { return Ok(Vec::new()) };
        let row: Vec<serde_json::Value> = serde_json::from_str(row)?;
        let integer = |value: &serde_json::Value| value.as_i64().or_else(|| value.as_str()?.parse().ok());
        row.iter().map(|value| integer(value).context("a number")).collect()
    }
}

pub(super) fn measure(arguments: &Arguments, python: &Path) -> anyhow::Result<()> {
    let temporary = tempfile::tempdir()?;
    let dir = temporary.path();
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let server = Server { python, dir, port };
    let mut running = Some(server.start()?);
    let script = Command::new(binary()?).args(["archive", "--clickhouse-schema"]).output()?.stdout;
    let script = String::from_utf8(script)?;
    for part in script.split(";\n").filter(|part| part.lines().any(|line| !line.starts_with("--") && !line.is_empty()))
    {
        server.sql(part)?;
    }
    let (agents, rate) = (arguments.nodes as usize, arguments.rate);
    let mut stores = Vec::with_capacity(agents);
    let mut pushers = Vec::with_capacity(agents);
    for agent in 0..agents {
        let db = dir.join(format!("n{agent:03}.db"));
        stores.push(Store::open(&db, StoreConfig::default())?);
        let mut command = Command::new(binary()?);
        command.args(["archive", "--every", "10s", "--clickhouse"]).arg(format!("http://127.0.0.1:{port}"));
        command.arg("--db").arg(&db).env("CLICKHOUSE_USER", "pusher").env("CLICKHOUSE_PASSWORD", "hush-hush");
        pushers.push(Job(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?));
    }
    let there = "SELECT count(*), count(DISTINCT (node, seq, rank)) FROM rankmesh.collectives";
    let (seconds, gone) = (arguments.seconds, arguments.gone);
    let (leaves, comes) = (seconds / 3, seconds / 3 + gone);
    let (began, mut recorded, mut most_behind) = (Instant::now(), 0_u64, 0);
    let mut looked = Instant::now();
    while began.elapsed() < Duration::from_secs(seconds) {
        let due = (began.elapsed().as_secs_f64() * rate as f64) as u64;
        for seq in recorded..due {
            let ts_ns = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())?;
            stores.iter().for_each(|store| store.ingest().record(Record::Collective(call(ts_ns, seq))));
        }
        recorded = due;
        let elapsed = began.elapsed().as_secs();
        if elapsed >= leaves && elapsed < comes {
            if running.take().is_some() {
                println!("after {elapsed} s the server is gone");
            }
        } else if running.is_none() {
            running = Some(server.start()?);
            println!("after {} s the server is back", began.elapsed().as_secs());
        }
        if running.is_some() && looked.elapsed() > Duration::from_secs(10) {
            looked = Instant::now();
            let rows = server.sql("SELECT count(*) FROM rankmesh.collectives")?.first().copied().unwrap_or(0);
            let behind = (recorded * agents as u64).saturating_sub(rows.cast_unsigned());
            most_behind = most_behind.max(behind);
            println!("after {} s: {rows} rows there, {behind} behind", began.elapsed().as_secs());
        }
        std::thread::sleep(TICK);
    }
    if running.is_none() {
        running = Some(server.start()?);
    }
    for store in &stores {
        store.flush(Duration::from_secs(60))?;
    }
    let lost: u64 = stores.iter().map(|store| store.health().lost).sum();
    let all = recorded * agents as u64 - lost;
    let drained = Instant::now();
    let (rows, different) = loop {
        let found = server.sql(there)?;
        let (rows, different) = (found.first().copied().unwrap_or(0), found.get(1).copied().unwrap_or(0));
        if rows.cast_unsigned() >= all || drained.elapsed() > DRAIN {
            break (rows, different);
        }
        std::thread::sleep(Duration::from_secs(1));
    };
    let carried = rows as f64 / (began.elapsed().as_secs_f64() - gone as f64);
    println!("{agents} agents, {rate} rows/s each for {seconds} s, the server gone for {gone} s: {rows} of {all} rows");
    println!("all there {:.0} s after the last; {lost} lost before their store", drained.elapsed().as_secs_f64());
    figure("push_rows_a_second", carried, "rows/s", ">=", (rate * agents as u64) as f64);
    figure("push_most_behind", most_behind as f64, "rows", "<=", (rate * agents as u64 * (gone + 30)) as f64);
    figure("push_rows_missing", all as f64 - different as f64, "rows", "<=", 0.0);
    figure("push_rows_doubled", rows as f64 - different as f64, "rows", "<=", 0.0);
    drop(running);
    Ok(())
}
