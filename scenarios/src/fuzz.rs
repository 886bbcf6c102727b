//! What fuzzing feeds: each reader of bytes from outside, as a target with whole, valid inputs to
//! start from. `scenarios/fuzz/` (cargo-fuzz's layout) hands the targets to libFuzzer; a test
//! replays the saved inputs of `scenarios/fuzz/corpus/TARGET/` for ever.

mod elf;
mod members;
mod peers;
mod verdicts;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use certs::{Issuer, JoinToken, TrustList};
use model::frame::{self, FrameReader};
use model::wire::{Request, Response};
use query_planner::{AskOptions, Catalog};
use rusqlite::Connection;
use store::ServedDb;

/// What reads bytes from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Libraries and programs of other users.
    Elf,
    /// The memory of a process with a Python interpreter.
    Python,
    /// Frames and messages of questions.
    Frames,
    /// Gossip messages.
    Gossip,
    /// Sequences of them, into a running gossiper.
    GossipStates,
    /// Verdicts that members publish, and which of them counts.
    Published,
    /// A question from text to plan to rows.
    Sql,
    /// Join tokens, join requests and responses.
    Tokens,
    /// Certificate requests at the CA.
    Csr,
    /// Signed trust lists.
    Trust,
    /// Database files of others.
    ForeignDb,
    /// Records from the kernel's ring buffer.
    Records,
    /// Tasks of other nodes, worked on, and answers to ours, combined.
    Tasks,
    /// Catalogues of other nodes, planned against.
    Catalogs,
    /// Facts that other nodes gossip.
    Facts,
    /// Requests on the local socket, answered.
    Local,
    /// Digests of many hosts, and what is judged of them.
    Verdicts,
}

impl Target {
    /// All of them.
    pub const ALL: [Self; 17] = [
        Self::Elf,
        Self::Python,
        Self::Frames,
        Self::Gossip,
        Self::GossipStates,
        Self::Published,
        Self::Sql,
        Self::Tokens,
        Self::Csr,
        Self::Trust,
        Self::ForeignDb,
        Self::Records,
        Self::Tasks,
        Self::Catalogs,
        Self::Facts,
        Self::Local,
        Self::Verdicts,
    ];

    /// Its name, and that of its corpus.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Elf => "elf",
            Self::Python => "python",
            Self::Frames => "frames",
            Self::Gossip => "gossip",
            Self::GossipStates => "gossip-states",
            Self::Published => "published",
            Self::Sql => "sql",
            Self::Tokens => "tokens",
            Self::Csr => "csr",
            Self::Trust => "trust",
            Self::ForeignDb => "foreign-db",
            Self::Records => "records",
            Self::Tasks => "tasks",
            Self::Catalogs => "catalogs",
            Self::Facts => "facts",
            Self::Local => "local",
            Self::Verdicts => "verdicts",
        }
    }

    /// Its saved inputs, in the source tree.
    #[must_use]
    pub fn corpus(self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(self.name())
    }

    /// Valid inputs to start from, and what the corpus has.
    ///
    /// # Errors
    /// A seed cannot be made or a saved input not be read.
    pub fn seeds(self) -> anyhow::Result<Vec<Vec<u8>>> {
        let ca = ca()?;
        let mut seeds = match self {
            Self::Elf => elf::seeds(),
            Self::Python => explain::stacks::python::images(),
            Self::Frames => vec![
                frame::encode(&Request::Ping)?,
                frame::encode(&Request::Renew { csr: vec![7; 40] })?,
                frame::encode(&Response::Catalog(vec![1; 300]))?,
                frame::encode(&Response::Unsupported("no".to_owned()))?,
                frame::encode(&Response::OpenCalls(Vec::new()))?,
            ],
            // Magic, protocol version and each kind of message.
            Self::Gossip => (0..5).map(|kind| [&[0x53, 0xB0, 0, kind][..], &[0; 60]].concat()).collect(),
            Self::GossipStates => members::seeds(),
            Self::Published => verdicts::published(),
            Self::Sql => SQL.iter().map(|sql| sql.as_bytes().to_vec()).collect(),
            Self::Tokens => vec![ca.token.to_string().into_bytes(), ca.request.clone(), ca.response.clone()],
            Self::Csr => vec![certs::renew::request()?.0],
            Self::Trust => vec![ca.list.clone()],
            Self::ForeignDb => vec![ca.database.clone()],
            Self::Records => [64, 128, 200, 256].iter().map(|length| vec![0; *length]).collect(),
            Self::Tasks => peers::task_seeds()?,
            Self::Catalogs => peers::catalog_seeds()?,
            Self::Facts => peers::fact_seeds(),
            Self::Local => peers::local_seeds()?,
            Self::Verdicts => verdicts::seeds(),
        };
        if let Ok(saved) = std::fs::read_dir(self.corpus()) {
            // In order: what a generator of one seed makes of them is then the same in every
            // checkout.
            let mut files: Vec<PathBuf> = saved.flatten().map(|file| file.path()).collect();
            files.sort();
            for file in files {
                seeds.push(std::fs::read(file)?);
            }
        }
        Ok(seeds)
    }

    /// Feeds one input. Harm that it does is a panic, or the time and memory that it takes.
    ///
    /// # Errors
    /// What the target needs besides the input cannot be set up.
    pub fn feed(self, input: &[u8]) -> anyhow::Result<()> {
        let ca = ca()?;
        match self {
            Self::Elf => elf::feed(input),
            Self::Python => drop(explain::stacks::python::read_image(input)),
            Self::Frames => {
                let runtime = runtime();
                runtime.block_on(async {
                    let mut reader = FrameReader::new(input);
                    while let Ok(Some(_)) = reader.read::<Request>().await {}
                    let mut reader = FrameReader::new(input);
                    while let Ok(Some(_)) = reader.read::<Response>().await {}
                });
            }
            Self::Gossip => drop(gossip::hostile::read(input)),
            Self::GossipStates => members::feed(input)?,
            Self::Published => members::feed_verdicts(input),
            Self::Sql => sql(&String::from_utf8_lossy(input))?,
            Self::Tokens => {
                let _ = String::from_utf8_lossy(input).parse::<JoinToken>();
                let _ = certs::join::answer(input, &ca.issuer);
                let (_, pending) = certs::join::request(&ca.token, &"n".parse()?)?;
                let _ = pending.complete(input);
            }
            Self::Csr => {
                drop(ca.issuer.authority().sign_csr(input, &"n".parse()?, certs::Role::Node, Duration::from_secs(60)))
            }
            Self::Trust => {
                let roots = [ca.issuer.authority().certificate().clone()];
                let _ = TrustList::verify(input, ca.issuer.authority().mesh(), &roots);
            }
            Self::ForeignDb => foreign(input)?,
            Self::Records => drop(node_bpf::reads_as_record(input)),
            Self::Tasks => peers::feed_task(input)?,
            Self::Catalogs => peers::feed_catalog(input)?,
            Self::Facts => peers::feed_facts(input),
            Self::Local => peers::feed_local(input)?,
            Self::Verdicts => verdicts::feed(input),
        }
        Ok(())
    }
}

/// Before the first input of a fuzzing run: writes the valid inputs of this process (its keys are
/// its own, so nobody else's tokens and signatures are valid here) into the directory that the
/// variable `FUZZ_SEEDS` names, which the fuzzer reads next.
///
/// # Errors
/// Seeds cannot be made, or not be written.
pub fn start(target: Target) -> anyhow::Result<()> {
    query_planner::memory::install();
    if let Some(directory) = std::env::var_os("FUZZ_SEEDS") {
        std::fs::create_dir_all(&directory)?;
        for (number, seed) in target.seeds()?.into_iter().enumerate() {
            std::fs::write(Path::new(&directory).join(format!("seed-{number}")), seed)?;
        }
    }
    Ok(())
}

const SQL: [&str; 7] = [
    "SELECT source, count(*), avg(duration) FROM events GROUP BY source HAVING count(*) > 1 ORDER BY 2 DESC LIMIT 3",
    "SELECT e.source, s.name FROM events e LEFT JOIN sources s ON s.id = e.source WHERE e.duration BETWEEN 1 AND 9",
    "WITH t AS (SELECT node, max(duration) AS m FROM events GROUP BY node) SELECT * FROM t WHERE m > (SELECT avg(m) FROM t)",
    "SELECT group_concat(source, ','), approx_quantile(duration, 0.9), stddev(duration) FROM events",
    "SELECT CASE WHEN duration IS NULL THEN 'x' ELSE printf('%5.2f', duration / 3.0) END FROM events UNION SELECT name FROM sources",
    "SELECT source, row_number() OVER (PARTITION BY source ORDER BY duration) FROM events WHERE name LIKE 'a%' ESCAPE '\\'",
    "SELECT json_extract('{\"a\":[1,2]}', '$.a[1]'), x'00ff', 1e308 * 10, -9223372036854775808, cast('1' AS INTEGER)",
];

/// A CA with one of everything that it makes.
struct Ca {
    _dir: tempfile::TempDir,
    issuer: Issuer,
    token: JoinToken,
    request: Vec<u8>,
    response: Vec<u8>,
    list: Vec<u8>,
    database: Vec<u8>,
    path: PathBuf,
    catalog: Catalog,
}

fn ca() -> anyhow::Result<&'static Ca> {
    static CA: OnceLock<Ca> = OnceLock::new();
    if let Some(ca) = CA.get() {
        return Ok(ca);
    }
    let dir = tempfile::tempdir()?;
    let issuer = Issuer::init(dir.path(), &"m".parse()?)?;
    let token = issuer.tokens().create(Duration::from_secs(86_400), None)?;
    let (request, _) = certs::join::request(&token, &"seed".parse()?)?;
    let response = certs::join::answer(&request, &issuer).bytes;
    issuer.revoke("seed")?;
    let list = std::fs::read(TrustList::path(dir.path()))?;
    let path = dir.path().join("seed.db");
    let db = Connection::open(&path)?;
    db.execute_batch(
        "PRAGMA page_size = 512;
         CREATE TABLE events(source INTEGER, duration REAL, name TEXT); CREATE INDEX i ON events(source);
         CREATE VIEW v AS SELECT source, max(duration) FROM events GROUP BY source;
         INSERT INTO events VALUES (1, 2.5, 'a'), (2, NULL, 'b'), (1, 7, 'c');
         CREATE TABLE sources(id INTEGER PRIMARY KEY, name TEXT); INSERT INTO sources VALUES (1, 'x');",
    )?;
    let catalog = Catalog::of(&db, &["sources".to_owned()])?;
    drop(db);
    let database = std::fs::read(&path)?;
    Ok(CA.get_or_init(|| Ca { _dir: dir, issuer, token, request, response, list, database, path, catalog }))
}

fn runtime() -> &'static tokio::runtime::Runtime {
    static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| match tokio::runtime::Builder::new_current_thread().build() {
        Ok(runtime) => runtime,
        Err(error) => panic!("no runtime: {error}"),
    })
}

/// From text to plans, and to rows of a file within a short deadline.
fn sql(sql: &str) -> anyhow::Result<()> {
    let ca = ca()?;
    for per_node in [false, true] {
        let options = AskOptions { per_node, single_node: false };
        if let Ok(plan) = query_planner::plan(sql, &ca.catalog, &options) {
            let _ = query_planner::explain(&plan);
        }
    }
    let _ = store::file::ask(&ca.path, sql, Instant::now() + Duration::from_millis(300));
    Ok(())
}

/// A file of somebody's, opened, looked at and asked.
fn foreign(input: &[u8]) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("f.db");
    std::fs::write(&path, input)?;
    if ServedDb::open(&path, Vec::new()).is_ok() {
        let deadline = Instant::now() + Duration::from_millis(300);
        for sql in ["SELECT * FROM events", "SELECT source, count(*) FROM events GROUP BY source", "SELECT * FROM v"] {
            let _ = store::file::ask(&path, sql, deadline);
        }
    }
    Ok(())
}
