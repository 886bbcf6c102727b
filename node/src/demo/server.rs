//! The server of `rankmesh demo --serving`: HTTP/1.1 on a thread a connection, which hands each request
//! to one of a few workers. A worker reads a cache under a lock; of a faulty server another thread
//! refreshes the cache now and then, and keeps the lock for far too long, and some requests are tried
//! again after a pause.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use anyhow::Context;

/// Threads that do the work.
const WORKERS: usize = 4;
/// What a request computes.
const WORK: Duration = Duration::from_micros(300);
/// The cache is refreshed so often, which takes so long; every so many requests one is tried again.
const REFRESH_EVERY: Duration = Duration::from_millis(100);
pub(super) const REFRESH: Duration = Duration::from_millis(40);
pub(super) const RETRIED: u64 = 100;
pub(super) const RETRY: Duration = Duration::from_millis(60);
/// A longer head of a request ends its connection.
const LONGEST_HEAD: usize = 8 << 10;

/// Names of threads, as `tail` shows them.
pub(super) const REFRESHER: &str = "cache-refresh";
pub(super) const WORKER: &str = "worker-";

/// A request that waits for a worker: who is told when it is done.
type Job = mpsc::Sender<()>;

/// The cache, which a worker reads and the refresher writes.
type Cache = Arc<Mutex<u64>>;

/// Serves until its standard input ends: prints the port, once a line has come (before that it has no
/// second thread, and can be put into a cgroup).
///
/// # Errors
/// It cannot listen, or start threads.
pub(crate) fn serve(is_faulty: bool) -> anyhow::Result<()> {
    let mut line = String::new();
    let mut stdin = std::io::stdin().lock();
    stdin.read_line(&mut line).context("waiting for the demo")?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("listening")?;
    let port = listener.local_addr().context("listening")?.port();
    let cache = Cache::default();
    let (jobs, queue) = mpsc::channel::<Job>();
    let (queue, count) = (Arc::new(Mutex::new(queue)), Arc::new(AtomicU64::new(0)));
    for number in 1..=WORKERS {
        let (queue, cache, count) = (Arc::clone(&queue), Arc::clone(&cache), Arc::clone(&count));
        spawn(&format!("{WORKER}{number}"), move || work(&queue, &cache, &count, is_faulty))?;
    }
    if is_faulty {
        let cache = Arc::clone(&cache);
        spawn(REFRESHER, move || refresh(&cache))?;
    }
    spawn("accept", move || {
        for stream in listener.incoming().flatten() {
            let jobs = jobs.clone();
            // A connection without a thread is closed.
            let _ = spawn("connection", move || answer(stream, &jobs));
        }
    })?;
    println!("{port}");
    // Until the demo closes its end, or is gone.
    stdin.read_line(&mut line).context("waiting for the demo's end")?;
    Ok(())
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).with_context(|| format!("starting thread {name}"))?;
    Ok(())
}

fn work(queue: &Mutex<mpsc::Receiver<Job>>, cache: &Mutex<u64>, count: &AtomicU64, is_faulty: bool) {
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(done) = job else { return };
        let number = count.fetch_add(1, Ordering::Relaxed);
        let read = *cache.lock().unwrap_or_else(PoisonError::into_inner);
        compute(WORK, read);
        if is_faulty && number % RETRIED == RETRIED - 1 {
            std::thread::sleep(RETRY);
        }
        // (Its connection may be gone.)
        let _ = done.send(());
    }
}

fn compute(length: Duration, from: u64) {
    let until = Instant::now() + length;
    let mut value = from;
    while Instant::now() < until {
        value = std::hint::black_box(value.wrapping_mul(31).wrapping_add(7));
    }
}

fn refresh(cache: &Mutex<u64>) {
    loop {
        std::thread::sleep(REFRESH_EVERY);
        let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
        std::thread::sleep(REFRESH);
        *cache += 1;
    }
}

/// Answers the requests of a connection, one after the other.
fn answer(mut stream: TcpStream, jobs: &mpsc::Sender<Job>) {
    let Ok(reading) = stream.try_clone() else { return };
    let mut reader = BufReader::new(reading);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            match reader.read_line(&mut line) {
                Ok(2) if line == "\r\n" => break,
                Ok(read @ 1..) if length + read <= LONGEST_HEAD => length += read,
                _ => return,
            }
        }
        let (done, is_done) = mpsc::channel();
        if jobs.send(done).is_err() || is_done.recv().is_err() {
            return;
        }
        if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
            return;
        }
    }
}
