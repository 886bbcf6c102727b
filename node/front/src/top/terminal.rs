//! The terminal: its screen is switched and restored, whatever happens; keys, signals and fetched
//! data come in, pictures go out, at most four a second, of each only the cells that changed.

use std::io::{Stdout, Write, stdout};
use std::panic;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use ask::{Exit, Target};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use nix::sys::signal::{self, SaFlags, SigAction, SigHandler, SigSet, Signal};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event as Input, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::crossterm::{execute, queue};
use ratatui::layout::Rect;
use top::{App, Data, Key, Look, Overlay, View, Wish, draw};

use super::source::{Event, Source};
use super::{TopArgs, files};

/// Time between two pictures, at least.
const FRAME: Duration = Duration::from_millis(250);
/// Time between two pictures, at most: ages are shown.
const STILL: Duration = Duration::from_secs(1);
/// Time between two checks for keys.
const LOOK: Duration = Duration::from_millis(20);

/// What comes in besides fetched data.
enum In {
    Fetched(Event),
    Key(Key),
    Resized,
    Signal(Signal),
    /// Keys cannot be read any more.
    NoInput,
}

/// The screen; restores the terminal when it is dropped.
struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    fn take() -> anyhow::Result<Self> {
        let guard = Self { terminal: Terminal::new(CrosstermBackend::new(stdout()))? };
        enter()?;
        Ok(guard)
    }

    /// Sets the terminal up again, after the process was stopped, and draws everything anew.
    fn retake(&mut self) -> anyhow::Result<()> {
        // The shell has set its own modes in the meantime: raw mode has to be set again.
        let _ = disable_raw_mode();
        enter()?;
        // (`clear` would ask the terminal where its cursor is, and the thread of keys would read
        // the answer.)
        let size = self.terminal.size()?;
        self.terminal.resize(Rect::new(0, 0, size.width, size.height))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

fn enter() -> anyhow::Result<()> {
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen, Hide)?;
    Ok(())
}

/// Restores the terminal; doing it twice does no harm.
fn leave() {
    let mut out = stdout();
    let _ = queue!(out, LeaveAlternateScreen, Show);
    let _ = out.flush();
    let _ = disable_raw_mode();
}

pub(super) fn run(target: Target, args: &TopArgs, look: Look) -> anyhow::Result<Exit> {
    let (to, from) = mpsc::channel();
    listen_to_signals(to.clone())?;
    let span_ns = args.span.resolved_ns(&target)?;
    let mut data = Data::of(target.description(), target.is_stores());
    if let Some((_, until_ns)) = span_ns {
        (data.show_at, data.is_loading) = (Some(until_ns), true);
    }
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        leave();
        before(info);
    }));
    let mut screen = Screen::take()?;
    let source = Source::start(target, args.job.clone(), span_ns, forward(to.clone()));
    read_keys(to);
    source.shows_services(args.view == View::Services);
    let ended =
        Session { app: App::at(args.view), data, look, source, started: Instant::now() }.run(&mut screen, &from);
    drop(screen);
    match ended? {
        Some(signal) => {
            // Ends as if the signal had not been caught, so that the parent process sees the
            // signal.
            let action = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
            // SAFETY: the default action runs no code of this process.
            unsafe { signal::sigaction(signal, &action) }?;
            signal::raise(signal)?;
            Ok(Exit::Failed)
        }
        None => Ok(Exit::Complete),
    }
}

/// Passes fetched data on in the channel of the keys.
fn forward(to: Sender<In>) -> Sender<Event> {
    let (fetched, from) = mpsc::channel();
    std::thread::spawn(move || {
        while let Ok(event) = from.recv() {
            if to.send(In::Fetched(event)).is_err() {
                return;
            }
        }
    });
    fetched
}

/// Signals that end, stop or continue a process come as events.
fn listen_to_signals(to: Sender<In>) -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut streams = Vec::new();
    {
        let _in_runtime = runtime.enter();
        let kinds =
            [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGTSTP, Signal::SIGCONT];
        for kind in kinds {
            streams.push((kind, signal(SignalKind::from_raw(kind as i32))?));
        }
    }
    std::thread::spawn(move || {
        runtime.block_on(async {
            loop {
                let any = streams.iter_mut().map(|(kind, stream)| {
                    let kind = *kind;
                    Box::pin(async move { stream.recv().await.map(|()| kind) })
                });
                let (caught, ..) = futures::future::select_all(any).await;
                let Some(caught) = caught else { return };
                if to.send(In::Signal(caught)).is_err() {
                    return;
                }
            }
        });
    });
    Ok(())
}

fn read_keys(to: Sender<In>) {
    std::thread::spawn(move || {
        loop {
            let next = match event::read() {
                Ok(Input::Key(pressed)) if pressed.kind != KeyEventKind::Release => {
                    keys(pressed.code, pressed.modifiers).into_iter().flatten().map(In::Key).collect()
                }
                Ok(Input::Resize(..)) => vec![In::Resized],
                Ok(_) => continue,
                Err(_) => vec![In::NoInput],
            };
            for input in next {
                let is_last = matches!(input, In::NoInput);
                if to.send(input).is_err() || is_last {
                    return;
                }
            }
        }
    });
}

/// The keys of one event. A terminal sends Alt and a key as it sends Esc and that key: where both
/// were read at once (a slow line), they were Esc and the key, for nothing here is on Alt.
fn keys(code: KeyCode, modifiers: KeyModifiers) -> [Option<Key>; 2] {
    // (Arrows and the like come as one sequence that names Alt.)
    let is_one_byte = matches!(code, KeyCode::Char(_) | KeyCode::Enter | KeyCode::Tab | KeyCode::Backspace);
    let escaped = (is_one_byte && modifiers.contains(KeyModifiers::ALT)).then_some(Key::Esc);
    [escaped, key(code, modifiers)]
}

fn key(code: KeyCode, modifiers: KeyModifiers) -> Option<Key> {
    if modifiers.contains(KeyModifiers::CONTROL) {
        return match code {
            KeyCode::Char('c') => Some(Key::Interrupt),
            KeyCode::Char('z') => Some(Key::Char('z')),
            _ => None,
        };
    }
    Some(match code {
        KeyCode::Char(typed) => Key::Char(typed),
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Esc,
        KeyCode::Tab => Key::Tab,
        KeyCode::BackTab => Key::BackTab,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    })
}

/// One session of a person.
struct Session {
    app: App,
    data: Data,
    look: Look,
    source: Source,
    started: Instant,
}

/// What follows from an event.
enum Then {
    Nothing,
    Draw,
    /// Draw all cells.
    Anew,
    End(Option<Signal>),
}

impl Session {
    /// Runs until the person, a signal or the terminal ends it; returns the signal.
    fn run(mut self, screen: &mut Screen, from: &Receiver<In>) -> anyhow::Result<Option<Signal>> {
        let (mut drawn, mut is_due) = (None::<Instant>, true);
        loop {
            let since = drawn.map(|at| at.elapsed());
            if since.is_none_or(|since| (is_due && since >= FRAME) || since >= STILL) {
                let now_ms = self.now_ms();
                let Self { app, data, look, .. } = &mut self;
                screen.terminal.draw(|frame| draw(frame, app, data, look, now_ms))?;
                (drawn, is_due) = (Some(Instant::now()), false);
            }
            let wait = if is_due { FRAME.saturating_sub(drawn.map_or(FRAME, |at| at.elapsed())) } else { FRAME };
            let mut next = match from.recv_timeout(wait.max(LOOK)) {
                Ok(next) => next,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
            };
            loop {
                match self.take(next, screen)? {
                    Then::Nothing => {}
                    Then::Draw => is_due = true,
                    Then::Anew => {
                        screen.retake()?;
                        is_due = true;
                    }
                    Then::End(signal) => return Ok(signal),
                }
                match from.try_recv() {
                    Ok(more) => next = more,
                    Err(_) => break,
                }
            }
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn take(&mut self, next: In, screen: &mut Screen) -> anyhow::Result<Then> {
        Ok(match next {
            In::Fetched(event) => self.fetched(event),
            In::Resized => Then::Draw,
            In::Key(key) => {
                let wish = self.app.key(key, &self.data);
                self.source.shows_services(self.app.view() == View::Services);
                match wish {
                    Some(wish) => self.wish(wish, screen)?,
                    None => Then::Draw,
                }
            }
            In::Signal(Signal::SIGTSTP) => self.suspend()?,
            // Also after a stop that could not be caught.
            In::Signal(Signal::SIGCONT) => Then::Anew,
            In::Signal(signal) => Then::End(Some(signal)),
            In::NoInput => Then::End(None),
        })
    }

    /// Stops this process, as the terminal's stop key does; returns when it is continued.
    fn suspend(&mut self) -> anyhow::Result<Then> {
        leave();
        signal::kill(nix::unistd::Pid::this(), Signal::SIGSTOP)?;
        Ok(Then::Anew)
    }

    fn fetched(&mut self, event: Event) -> Then {
        let (number, now_ms) = (self.source.number(), self.now_ms());
        let is_live = self.data.show_at.is_none();
        match event {
            // A time in the past stays, and a paused screen shows nothing new.
            Event::Watched(of, _) if of != number || !is_live => return Then::Nothing,
            Event::Watched(..) if self.app.is_paused() => self.data.error = None,
            Event::Watched(_, watched) => {
                self.data.error = None;
                self.source.shows(watched.job.as_ref().and_then(|job| job.id.clone()));
                self.data.watch(*watched, now_ms);
            }
            Event::Board(of, board) => {
                if of != number || !is_live || (self.app.is_paused() && self.data.board_known().is_some()) {
                    return Then::Nothing;
                }
                self.data.board(*board);
            }
            Event::Past(of, _) if of != number => return Then::Nothing,
            Event::Past(_, Ok((watched, board))) => {
                self.data.error = None;
                if self.data.is_stores {
                    self.data.show_at = Some(watched.at_ns);
                }
                if let Some(board) = board {
                    self.data.forget_board();
                    self.data.board(*board);
                }
                self.data.watch(*watched, now_ms);
            }
            Event::Past(_, Err(why)) => {
                self.data.is_loading = false;
                self.data.error = Some(why);
            }
            Event::Samples(samples) => self.data.samples = samples,
            Event::Findings(findings) => self.data.findings = findings,
            Event::Services(services) => self.data.services = services,
            Event::Tail(title, text) => {
                // Unless it was closed meanwhile.
                if matches!(self.app.overlay(), Overlay::Text(shown, _) if *shown == title) {
                    self.app.show_text(&title, text);
                }
            }
            Event::Detail(detail) => self.data.detail = Some(*detail),
            Event::Answer(answer) => self.data.answer = Some(*answer),
            Event::Failed(of, why) => {
                if of == number && is_live {
                    self.data.error = Some(why);
                }
            }
        }
        Then::Draw
    }

    fn wish(&mut self, wish: Wish, screen: &mut Screen) -> anyhow::Result<Then> {
        match wish {
            Wish::Quit => return Ok(Then::End(None)),
            Wish::Suspend => return self.suspend(),
            Wish::Ask(sql) => {
                self.data.answer = None;
                self.source.ask(sql);
            }
            Wish::Job(job) => {
                self.data.forget_board();
                self.data.watched = None;
                self.source.job(job);
            }
            Wish::At(at_ns) => self.show(at_ns),
            Wish::Detail(node, pid, rank) => {
                self.data.detail = None;
                self.source.detail(node, pid, rank);
            }
            Wish::Tail(service) => self.source.tail(service),
            Wish::Export(view) => {
                let written = files::view(view, &self.data);
                self.report_written(written);
            }
            Wish::ExportAnswer => {
                if let Some(answer) = &self.data.answer {
                    let written = files::answer(answer);
                    self.report_written(written);
                }
            }
            Wish::Copy(text) => {
                // The terminal's own clipboard (OSC 52), wherever the terminal is; one without it
                // ignores the sequence.
                let out = screen.terminal.backend_mut();
                write!(out, "\u{1b}]52;c;{}\u{7}", BASE64_STANDARD.encode(text))?;
                std::io::Write::flush(out)?;
            }
        }
        Ok(Then::Draw)
    }

    fn report_written(&mut self, written: anyhow::Result<std::path::PathBuf>) {
        match written {
            Ok(path) => self.app.show_text("written", path.display().to_string()),
            Err(error) => self.app.show_text("not written", format!("{error:#}")),
        }
    }

    /// Shows another time; windows that are there stay.
    fn show(&mut self, at_ns: Option<i64>) {
        let was_live = self.data.show_at.is_none();
        self.data.show_at = at_ns;
        self.data.error = None;
        let is_there = match (at_ns, self.data.board_span()) {
            (Some(at_ns), Some((first, last))) => (first..=last).contains(&at_ns),
            _ => false,
        };
        match at_ns {
            Some(_) => self.data.is_loading = true,
            None if !was_live => {
                self.data.forget_board();
                self.data.watched = None;
            }
            None => {}
        }
        self.source.show(at_ns, !is_there);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_and_a_key_that_are_read_at_once_are_both() {
        let read = |code, modifiers| keys(code, modifiers).into_iter().flatten().collect::<Vec<_>>();
        assert_eq!(read(KeyCode::Char('1'), KeyModifiers::ALT), [Key::Esc, Key::Char('1')]);
        assert_eq!(read(KeyCode::Char('1'), KeyModifiers::NONE), [Key::Char('1')]);
        assert_eq!(read(KeyCode::Left, KeyModifiers::ALT), [Key::Left]);
        assert_eq!(read(KeyCode::Char('c'), KeyModifiers::CONTROL), [Key::Interrupt]);
    }
}
