//! Owns the way in: the handle capture records through, and the writer thread that turns the queue
//! into group commits, keeps rollups, loss and session with the rows, and drops old rows in
//! between. Does not own the queue (`queue`), the columns (`rows`), nor the file's form (`schema`).
//!
//! One drain of the queue is one transaction: rows, rollups, loss and session commit together or
//! not at all. A failed commit is kept and tried again with back-off while the bounded queue counts
//! what no longer fits.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use record::Record;
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};

use super::StoreConfig;
use super::age::AgeClock;
use super::checkpoint::Checkpointer;
use super::columnar::{Appender, COLUMNAR, Compactor, MOST_ROWS, MOST_SPAN_NS, RowColumns, Segment, SegmentError};
use super::facts::{FactsState, read_table};
use super::hold::Hold;
use super::losslog::{LossWriter, LossesWritten};
use super::queue::{Losses, Lost, Queue, merge_loss};
use super::retention::{self, Limits};
use super::rollups::{RollupWriter, Rollups};
use super::rows::{self, Annotation, Audit, ClockOffsetSeen, Finding, Item, Kind, StackSeen, Statements, Stored};
use super::schema::TIMED_TABLES;
use super::sessions::{self, Session};
use record::{steady_now_ns, unix_now_ns};

/// First and longest wait between attempts to commit.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// How often an idle store writes that its session goes on.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Longest wait of the writer without anything to do; retention by age runs at this pace.
const IDLE: Duration = Duration::from_secs(1);
/// How long the writer does not look for what is over the limits after it found nothing, if the
/// store does not grow by this share of its limit meanwhile.
const RETAIN_EVERY: Duration = Duration::from_millis(500);
/// See [`RETAIN_EVERY`].
const RETAIN_SHARE: u64 = 64;
/// Records of one commit: some 15 ms of work.
const MOST_A_COMMIT: usize = 16_384;

/// How the store does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreState {
    /// Commits succeed.
    Ok,
    /// Commits fail and are tried again; with the reason.
    Retrying(String),
    /// The store is closed.
    Closed,
}

/// Counters since the store was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// How the store does.
    pub state: StoreState,
    /// Records committed.
    pub stored: u64,
    /// Records that reached the store and were lost there: the queue was full, or they could not be
    /// written.
    pub lost: u64,
    /// Records waiting now.
    pub queued: usize,
    /// Group commits.
    pub commits: u64,
    /// Attempts to commit that failed.
    pub failed_commits: u64,
    /// When the last commit succeeded, Unix nanoseconds.
    pub last_commit_ns: i64,
    /// The longest commit.
    pub longest_commit: Duration,
    /// The time within which 99.9 % of the commits were done, to about a tenth.
    pub commit_p999: Duration,
}

/// What the handles, the store and the writer share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) queue: Queue,
    pub(crate) facts: Mutex<FactsState>,
    pub(crate) health: Mutex<Health>,
    /// Since when capture records, and when it ended, Unix nanoseconds; 0: not known.
    pub(crate) recording_since_ns: AtomicI64,
    /// See `recording_since_ns`.
    pub(crate) recording_until_ns: AtomicI64,
    pub(crate) hold: Hold,
}

impl Shared {
    pub(crate) fn new(queue_records: usize, facts: FactsState, now_ns: i64) -> Self {
        let health = Health {
            state: StoreState::Ok,
            stored: 0,
            lost: 0,
            queued: 0,
            commits: 0,
            failed_commits: 0,
            last_commit_ns: now_ns,
            longest_commit: Duration::ZERO,
            commit_p999: Duration::ZERO,
        };
        Self {
            queue: Queue::new(queue_records),
            facts: Mutex::new(facts),
            health: Mutex::new(health),
            recording_since_ns: AtomicI64::new(0),
            recording_until_ns: AtomicI64::new(0),
            hold: Hold::default(),
        }
    }

    pub(crate) fn facts(&self) -> MutexGuard<'_, FactsState> {
        self.facts.lock()
    }

    pub(crate) fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock()
    }
}

/// The way into the store. Cheap to clone; never blocks on the disk.
#[derive(Debug, Clone)]
pub struct Ingest {
    pub(crate) shared: Arc<Shared>,
}

impl Ingest {
    /// As [`super::Store::not_recorded`], for what is found out later.
    pub fn also_not_recorded(&self, tables: Vec<&'static str>, note: String) {
        self.shared.facts().not_recorded.push((tables, note));
    }

    /// Hand a record over. When the queue is full the record is dropped and counted: per table
    /// under the reason "queue" in `capture_loss`. Loss counts themselves are never dropped.
    pub fn record(&self, record: Record) {
        match record {
            Record::Loss(loss) => self.shared.queue.push_loss(loss),
            other => {
                self.shared.queue.push(Item::Record(other));
            }
        }
    }

    /// What was handed over up to now came together: it is committed now rather than when
    /// [`StoreConfig::commit_every`] has passed.
    pub fn batch_is_over(&self) {
        self.shared.queue.batch_is_over();
    }

    /// How full the queue is, in thousandths.
    #[must_use]
    pub fn fullness(&self) -> u32 {
        self.shared.queue.fullness()
    }

    /// How the store does, and its counters.
    #[must_use]
    pub fn health(&self) -> Health {
        Health { queued: self.shared.queue.len(), ..self.shared.health().clone() }
    }

    /// Size of the main file and of the write-ahead log.
    #[must_use]
    pub fn file_bytes(&self) -> (u64, u64) {
        let facts = self.shared.facts();
        (facts.file_bytes, facts.wal_bytes)
    }

    /// Records a question in the audit.
    pub fn audit(&self, audit: Audit) {
        self.shared.queue.push(Item::Audit(audit));
    }

    /// Records an annotation.
    pub fn annotation(&self, annotation: Annotation) {
        self.shared.queue.push(Item::Annotation(annotation));
    }

    /// Records a thread's stack.
    pub fn stack(&self, stack: StackSeen) {
        self.shared.queue.push(Item::Stack(stack));
    }

    /// Records the offset of another node's clock.
    pub fn clock_offset(&self, clock: ClockOffsetSeen) {
        self.shared.queue.push(Item::Clock(clock));
    }

    /// Records a finding.
    pub fn finding(&self, finding: Finding) {
        self.shared.queue.push(Item::Finding(finding));
    }
}

/// The body of the writer thread: runs until the queue is stopped, then closes the session.
pub(crate) fn run(
    conn: &Connection,
    shared: &Shared,
    session: Session,
    config: &StoreConfig,
    wal: PathBuf,
    mut checkpointer: Checkpointer,
    age: AgeClock,
) {
    let mut delay = BACK_OFF.0;
    let mut writer = loop {
        match Writer::prepare(conn, shared, session, config, wal.clone(), age.clone()) {
            Ok(writer) => break writer,
            Err(error) => {
                note_failure(shared, &error);
                if shared.queue.back_off(delay) {
                    shared.health().state = StoreState::Closed;
                    return;
                }
                delay = (delay * 2).min(BACK_OFF.1);
            }
        }
    };
    writer.run(&mut checkpointer);
}

fn note_failure(shared: &Shared, error: &rusqlite::Error) {
    let mut health = shared.health();
    health.failed_commits += 1;
    if health.state == StoreState::Ok {
        tracing::warn!(%error, "the trace store cannot commit; trying again");
    }
    health.state = StoreState::Retrying(error.to_string());
}

/// Errors that may pass by themselves; after any other the batch is given up, or it would fail for
/// ever.
fn may_pass(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(
            ErrorCode::DiskFull
                | ErrorCode::SystemIoFailure
                | ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::ReadOnly
                | ErrorCode::CannotOpen
                | ErrorCode::PermissionDenied
                | ErrorCode::OutOfMemory
        )
    )
}

/// Why a store is not written whose file was taken away.
const GONE: &str =
    "its file was removed or replaced while the agent ran: put it back, or start the agent again for a new one";

/// Device and inode of a file.
fn id_of(path: &std::path::Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

struct Writer<'c> {
    conn: &'c Connection,
    shared: &'c Shared,
    session: Session,
    config: &'c StoreConfig,
    limits: Limits,
    wal: PathBuf,
    statements: Statements<'c>,
    columns: Vec<Columns>,
    rollup_writer: RollupWriter,
    rollups: Rollups,
    loss_writer: LossWriter,
    losses: Losses,
    last_commit: Instant,
    /// The main file as it was opened: device and inode, and path.
    file: Option<((u64, u64), PathBuf)>,
    age: AgeClock,
    /// The last drain of the queue, Unix nanoseconds.
    drained_ns: i64,
    /// The drain before the first one that is not committed yet.
    unsettled_since_ns: Option<i64>,
    /// When to look for what is over the limits: at that time, or at that size.
    retain_at: (Instant, u64),
    /// Waited before the next commit: part of its time.
    waited: Duration,
    commit_times: CommitTimes,
}

/// Makes columns of one table's rows.
struct Columns {
    kind: Kind,
    appender: Appender,
    compactor: Compactor,
    /// The last rows that were written, for their memory.
    rows: RowColumns,
}

impl Columns {
    fn open(conn: &Connection, kind: Kind, time: &'static str) -> Result<Self, SegmentError> {
        let table = kind.table();
        let (appender, compactor) = (Appender::open(conn, table, time)?, Compactor::open(conn, table, time)?);
        Ok(Self { kind, appender, compactor, rows: RowColumns::default() })
    }

    /// Write records as segments inside the open transaction. Returns those and how many were not
    /// plausible.
    fn write(
        &mut self,
        conn: &Connection,
        records: &mut [&Record],
        rollups: &mut Rollups,
    ) -> Result<(Vec<Segment>, u64), SegmentError> {
        // In order of time, so that times and what goes with them pack well.
        records.sort_by_key(|record| rows::time_of(record));
        let (mut segments, mut written, mut invalid) = (Vec::new(), 0, 0);
        let mut rest: &[&Record] = records;
        while let Some(first) = rest.first() {
            let until_ns = rows::time_of(first).saturating_add(MOST_SPAN_NS);
            let most = rest.partition_point(|record| rows::time_of(record) <= until_ns).min(MOST_ROWS);
            let (chunk, others) = rest.split_at(most.max(1));
            rest = others;
            self.appender.rows_in_place_of(&mut self.rows, chunk.len());
            for record in chunk {
                invalid += u64::from(!rows::push(record, &mut self.rows, rollups));
            }
            if self.rows.rows() > 0 {
                segments.push(self.appender.write(conn, &self.rows, written)?);
                written += self.rows.rows();
            }
        }
        Ok((segments, invalid))
    }
}

/// Whether joining segments failed in a way that the next attempt will, too.
fn is_for_good(joined: Result<bool, SegmentError>) -> bool {
    match joined {
        Ok(_) => false,
        Err(SegmentError::Sqlite(error)) => {
            tracing::warn!(%error, "the trace store could not join segments; trying again");
            false
        }
        Err(error) => {
            tracing::error!(%error, "the trace store leaves segments as they are");
            true
        }
    }
}

/// How long commits took: counts by an eighth of a power of two of microseconds.
#[derive(Debug)]
struct CommitTimes {
    counts: [u64; 8 * 40],
    all: u64,
}

impl Default for CommitTimes {
    fn default() -> Self {
        Self { counts: [0; 8 * 40], all: 0 }
    }
}

impl CommitTimes {
    /// Counts one and returns the 99.9th percentile of all so far (the upper bound of its class).
    fn add(&mut self, took: Duration) -> Duration {
        let us = took.as_secs_f64() * 1e6;
        let class = ((us.max(1.0).log2() * 8.0) as usize).min(self.counts.len() - 1);
        self.counts[class] += 1;
        self.all += 1;
        let mut above = self.all / 1000;
        for (class, &count) in self.counts.iter().enumerate().rev() {
            if count > above {
                return Duration::from_secs_f64(((class + 1) as f64 / 8.0).exp2() / 1e6);
            }
            above -= count;
        }
        Duration::ZERO
    }
}

/// What a committed batch contained.
struct Batch {
    stored: u64,
    touched: Vec<(&'static str, &'static str)>,
    losses: LossesWritten,
    now_ns: i64,
}

impl<'c> Writer<'c> {
    fn prepare(
        conn: &'c Connection,
        shared: &'c Shared,
        session: Session,
        config: &'c StoreConfig,
        wal: PathBuf,
        age: AgeClock,
    ) -> rusqlite::Result<Self> {
        let file = conn.path().map(PathBuf::from);
        Ok(Self {
            file: file.and_then(|path| Some((id_of(&path)?, path))),
            age,
            drained_ns: unix_now_ns(),
            unsettled_since_ns: None,
            conn,
            shared,
            session,
            config,
            limits: config.limits(),
            wal,
            statements: Statements::prepare(conn)?,
            columns: COLUMNAR
                .iter()
                .filter_map(|(table, time)| {
                    Kind::ALL.iter().find(|kind| kind.table() == *table).map(|kind| (*kind, *time))
                })
                .filter(|(kind, _)| *kind != Kind::CallTally)
                .map(|(kind, time)| Columns::open(conn, kind, time))
                .collect::<Result<_, _>>()?,
            rollup_writer: RollupWriter::open(conn)?,
            rollups: Rollups::default(),
            loss_writer: LossWriter::default(),
            losses: Losses::new(),
            last_commit: Instant::now(),
            retain_at: (Instant::now(), 0),
            waited: Duration::ZERO,
            commit_times: CommitTimes::default(),
        })
    }

    fn run(&mut self, checkpointer: &mut Checkpointer) {
        loop {
            let drained = self.shared.queue.drain(self.config.commit_every, IDLE);
            let now_ns = unix_now_ns();
            let before_ns = std::mem::replace(&mut self.drained_ns, now_ns);
            self.unsettled_since_ns.get_or_insert(before_ns.min(now_ns));
            for ((probe, reason), lost) in drained.losses {
                merge_loss(&mut self.losses, probe, reason, lost);
            }
            for kind in Kind::ALL {
                self.lose(kind, "queue", drained.dropped[kind as usize], now_ns);
            }
            let began = Instant::now();
            let is_idle = drained.items.is_empty();
            if !drained.items.is_empty() || !self.losses.is_empty() || self.last_commit.elapsed() >= HEARTBEAT {
                // A queue that has filled up goes in several commits: none of them takes long.
                let mut rest = drained.items.as_slice();
                while rest.len() > MOST_A_COMMIT {
                    let (first, others) = rest.split_at(MOST_A_COMMIT);
                    self.settle(first);
                    checkpointer.nudge();
                    rest = others;
                }
                self.settle(rest);
                self.shared.queue.reuse(drained.items);
            }
            let spent = began.elapsed();
            self.shared.queue.settled(drained.flush);
            self.compact();
            // Dropping must keep up with ingest at any speed: it gets the time that the commit
            // took, or a little.
            if Instant::now() >= self.retain_at.0 || self.size() >= self.retain_at.1 {
                self.retain(spent.max(Duration::from_millis(20)));
            }
            checkpointer.nudge();
            self.waited += checkpointer.settle();
            // A log that a long question let grow: commits that come cut it back by themselves.
            if is_idle && self.wal_bytes() > self.limits.wal_bytes {
                checkpointer.truncate();
            }
            if drained.stop {
                checkpointer.stop();
                self.finish();
                return;
            }
        }
    }

    /// Count `lost` items of `kind`, to be written with the next commit.
    fn lose(&mut self, kind: Kind, reason: &str, lost: u64, now_ns: i64) {
        if lost > 0 {
            self.shared.health().lost += lost;
            let lost = Lost { since_ns: None, ts_ns: now_ns, count: lost };
            merge_loss(&mut self.losses, kind.table().to_owned(), reason.to_owned(), lost);
        }
    }

    /// Commit `items` and all loss counted so far, trying again as long as that may help and nobody
    /// waits to stop.
    fn settle(&mut self, mut items: &[Item]) {
        let mut delay = BACK_OFF.0;
        let mut stopping = false;
        loop {
            let began = Instant::now();
            match self.commit(items) {
                Ok(batch) => {
                    let waited = std::mem::take(&mut self.waited);
                    self.committed(batch, began.elapsed() + waited);
                    return;
                }
                Err(error) => {
                    note_failure(self.shared, &error);
                    if !stopping && may_pass(&error) {
                        stopping = self.shared.queue.back_off(delay);
                        // On a full disk, dropping what is too old anyway may make the room.
                        self.retain(Duration::from_millis(20));
                        delay = (delay * 2).min(BACK_OFF.1);
                        continue;
                    }
                    if items.is_empty() {
                        // Not even the counts could be written: they stay in memory for the next
                        // commit.
                        return;
                    }
                    tracing::error!(%error, records = items.len(), "the trace store gave up a batch");
                    self.give_up(items);
                    items = &[];
                }
            }
        }
    }

    fn give_up(&mut self, items: &[Item]) {
        let now_ns = unix_now_ns();
        for kind in Kind::ALL {
            let lost = items.iter().filter(|i| i.kind() == Some(kind)).count();
            self.lose(kind, "store", lost as u64, now_ns);
        }
    }

    fn commit(&mut self, items: &[Item]) -> rusqlite::Result<Batch> {
        let now_ns = unix_now_ns();
        if self.is_gone() {
            let moved = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_READONLY_DBMOVED);
            return Err(rusqlite::Error::SqliteFailure(moved, Some(GONE.to_owned())));
        }
        self.rollups.clear();
        let tx = Transaction::new_unchecked(self.conn, TransactionBehavior::Immediate)?;
        let mut stored = 0;
        let mut seen = [false; Kind::ALL.len()];
        let mut invalid = [0_u64; Kind::ALL.len()];
        let mut apart: Vec<Vec<&Record>> = vec![Vec::new(); self.columns.len()];
        let mut places = [None; Kind::ALL.len()];
        self.columns.iter().enumerate().for_each(|(at, columns)| places[columns.kind as usize] = Some(at));
        for item in items {
            let Some(kind) = item.kind() else { continue };
            if let (Item::Record(record), Some(at)) = (item, places[kind as usize]) {
                apart[at].push(record);
                continue;
            }
            match self.statements.write(item, &mut self.rollups, now_ns)? {
                Stored::Row => {
                    stored += 1;
                    seen[kind as usize] = true;
                }
                Stored::Invalid => invalid[kind as usize] += 1,
            }
        }
        let mut segments: Vec<Vec<Segment>> = Vec::with_capacity(self.columns.len());
        for (columns, records) in self.columns.iter_mut().zip(&mut apart) {
            let (written, refused) = columns.write(&tx, records, &mut self.rollups)?;
            invalid[columns.kind as usize] += refused;
            let rows: usize = written.iter().map(|segment| segment.rows).sum();
            stored += rows as u64;
            seen[columns.kind as usize] |= rows > 0;
            segments.push(written);
        }
        let rollups = self.rollup_writer.write(&tx, &mut self.rollups, now_ns)?;
        let mut losses = self.losses.clone();
        for kind in Kind::ALL {
            let lost = invalid[kind as usize];
            if lost > 0 {
                let lost = Lost { since_ns: None, ts_ns: now_ns, count: lost };
                merge_loss(&mut losses, kind.table().to_owned(), "invalid".to_owned(), lost);
            }
        }
        let unsettled_ns = self.unsettled_since_ns.unwrap_or(self.drained_ns);
        let written = self.loss_writer.write(self.conn, &losses, self.session, unsettled_ns)?;
        let since_ns = self.shared.recording_since_ns.load(Ordering::Relaxed);
        sessions::alive(self.conn, self.session, self.age.now(now_ns, steady_now_ns()), since_ns)?;
        tx.commit()?;
        for (columns, written) in self.columns.iter_mut().zip(segments) {
            columns.appender.committed(written.iter().map(|segment| segment.rows).sum());
            written.iter().for_each(|segment| columns.compactor.added(segment));
        }
        let rolled = rollups.is_some();
        if let Some(written) = rollups {
            self.rollup_writer.committed(written, &mut self.rollups);
        }
        self.shared.health().lost += invalid.iter().sum::<u64>();
        let touched = TIMED_TABLES
            .iter()
            .filter(|(table, _)| match *table {
                "call_rollups" => rolled,
                "capture_loss" => !losses.is_empty(),
                _ => Kind::ALL.iter().any(|k| k.table() == *table && seen[*k as usize]),
            })
            .copied()
            .collect();
        Ok(Batch { stored, touched, losses: written, now_ns })
    }

    fn committed(&mut self, batch: Batch, took: Duration) {
        self.losses.clear();
        self.unsettled_since_ns = None;
        self.last_commit = Instant::now();
        {
            let mut health = self.shared.health();
            if health.state != StoreState::Ok {
                tracing::info!("the trace store commits again");
            }
            health.state = StoreState::Ok;
            health.stored += batch.stored;
            health.commits += 1;
            health.last_commit_ns = batch.now_ns;
            health.longest_commit = health.longest_commit.max(took);
            health.commit_p999 = self.commit_times.add(took);
        }
        self.loss_writer.committed(batch.losses, &mut self.shared.facts().losses);
        self.renew(&batch.touched);
    }

    /// Renew the facts of some tables. A failure leaves the old ones for now.
    fn renew(&self, tables: &[(&'static str, &'static str)]) {
        for (table, column) in tables {
            if let Ok(facts) = read_table(self.conn, table, column) {
                self.shared.facts().set(facts);
            }
        }
        let file_bytes = retention::file_bytes(self.conn).unwrap_or(0);
        let wal_bytes = self.wal_bytes();
        let mut facts = self.shared.facts();
        facts.file_bytes = file_bytes;
        facts.wal_bytes = wal_bytes;
    }

    /// Join small segments; what fails now is tried again after the next commit.
    fn compact(&mut self) {
        for columns in &mut self.columns {
            let joined = columns.compactor.step(self.conn);
            // One at a time: records wait meanwhile.
            if matches!(joined, Ok(true)) {
                return;
            }
            if is_for_good(joined) {
                columns.compactor.forget();
            }
        }
        let joined = self.rollup_writer.compact(self.conn);
        if is_for_good(joined) {
            self.rollup_writer.forget();
        }
    }

    fn retain(&mut self, budget: Duration) {
        if self.is_gone() {
            return;
        }
        let now_ns = self.age.now(unix_now_ns(), steady_now_ns());
        let archived_ns = self.shared.hold.archived_ns(now_ns);
        match retention::step(self.conn, &self.limits, archived_ns, now_ns, budget) {
            Ok(step) => {
                self.shared.hold.note(step.wants_archive, step.not_archived);
                for segment in &step.segments {
                    self.columns.iter_mut().for_each(|columns| columns.compactor.dropped(*segment));
                    self.rollup_writer.dropped(*segment);
                }
                if let Some(cutoff_ns) = step.losses_until_ns {
                    self.shared.facts().losses.forget(cutoff_ns);
                }
                if !step.touched.is_empty() {
                    self.renew(&step.touched);
                } else if !step.more {
                    let grown = self.size().saturating_add(self.limits.max_bytes / RETAIN_SHARE);
                    self.retain_at = (Instant::now() + RETAIN_EVERY, grown);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the trace store could not drop old rows; trying again")
            }
        }
    }

    /// Bytes of the main file and the log, as of the last commit.
    fn size(&self) -> u64 {
        let facts = self.shared.facts();
        facts.file_bytes.saturating_add(facts.wal_bytes)
    }

    fn wal_bytes(&self) -> u64 {
        std::fs::metadata(&self.wal).map_or(0, |m| m.len())
    }

    fn truncate_wal(&self) {
        // A short wait for readers only: ingest goes on.
        let _ = self.conn.busy_timeout(Duration::from_millis(20));
        let result = self.conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |r| r.get::<_, i64>(0));
        if let Err(error) = result {
            tracing::debug!(%error, "the write-ahead log could not be truncated now");
        }
        let _ = self.conn.busy_timeout(Duration::from_millis(500));
    }

    /// Whether the file was removed, or another has its name: rows would be written where nobody
    /// finds them.
    fn is_gone(&self) -> bool {
        self.file.as_ref().is_some_and(|(opened, path)| id_of(path) != Some(*opened))
    }

    fn finish(&mut self) {
        let until_ns = match self.shared.recording_until_ns.load(Ordering::Relaxed) {
            0 => unix_now_ns(),
            until_ns => until_ns,
        };
        let since_ns = self.shared.recording_since_ns.load(Ordering::Relaxed);
        let alive_ns = self.age.now(unix_now_ns(), steady_now_ns()).min(until_ns);
        let ended = sessions::alive(self.conn, self.session, alive_ns, since_ns)
            .and_then(|()| sessions::end(self.conn, self.session, until_ns));
        if let Err(error) = ended {
            tracing::warn!(%error, "the trace store could not close its session");
        }
        self.truncate_wal();
        self.shared.health().state = StoreState::Closed;
    }
}
