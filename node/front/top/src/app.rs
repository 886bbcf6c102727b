//! The state of the screen: the view, what is selected in it, how it is sorted and filtered, what
//! is being typed. A pure state machine: a key changes the state and may give a [`Wish`].

use std::time::Duration;

use model::watch::RankNow;

use crate::data::{Data, Figure};
use crate::key::Key;
use crate::questions;
use crate::units::harmless;
use crate::view::View;

/// A request to the code that has the terminal and the sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// End the program.
    Quit,
    /// Suspend it, as Ctrl-Z does.
    Suspend,
    /// Ask this question, and put the answer into [`Data::answer`].
    Ask(String),
    /// Show this job; none: the one that is worst off.
    Job(Option<String>),
    /// Show this time, Unix nanoseconds; none: now.
    At(Option<i64>),
    /// Fetch the details of this rank: its host and process, and its number.
    Detail(String, i64, i64),
    /// Show what the slowest requests of this service wait for, over the view, under the title
    /// [`slowest_of`].
    Tail(String),
    /// Write what this view shows into a file.
    Export(View),
    /// Write the answer to the question that was typed into a file.
    ExportAnswer,
    /// Put this text into the terminal's clipboard.
    Copy(String),
}

/// The title of what is shown of a service's slowest requests.
#[must_use]
pub fn slowest_of(service: &str) -> String {
    format!("{}: what its slowest requests wait for", harmless(service, 40))
}

/// The overlay on the view.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Overlay {
    /// Nothing.
    #[default]
    None,
    /// The keys.
    Help,
    /// A text, such as a view's SQL: title and body.
    Text(String, String),
    /// The answer to the question that was typed.
    Answer,
}

/// The line of input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Prompt {
    Filter(String),
    Sql(String),
}

/// The order of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    Worst,
    Rank,
    Node,
    Late,
    Wait,
}

impl Sort {
    const ALL: [Self; 5] = [Self::Worst, Self::Rank, Self::Node, Self::Late, Self::Wait];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Worst => "worst first",
            Self::Rank => "by rank",
            Self::Node => "by host",
            Self::Late => "by lateness",
            Self::Wait => "by wait",
        }
    }

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }
}

/// Windows that a column of the heat map stands for.
const ZOOMS: [usize; 5] = [1, 2, 5, 10, 20];
/// Longest that can be typed.
const LONGEST: usize = 4_000;
/// Data counts as stale when none came for this long.
pub(crate) const STALE: Duration = Duration::from_secs(5);

/// The state of the screen.
#[derive(Debug, Clone)]
pub struct App {
    pub(crate) view: View,
    /// The view to which escape returns from one rank.
    before: View,
    pub(crate) overlay: Overlay,
    pub(crate) prompt: Option<Prompt>,
    pub(crate) filter: String,
    pub(crate) sort: Sort,
    /// The figure of the heat map that was chosen.
    figure: Option<Figure>,
    zoom: usize,
    pub(crate) is_paused: bool,
    /// State of each view.
    pub(crate) selected: [usize; View::ALL.len()],
    /// Lines by which an overlay is scrolled.
    pub(crate) scrolled: usize,
    /// Rows of the view as it was drawn last: a page.
    pub(crate) page: usize,
    /// The rank that is shown: host, process, number.
    pub(crate) rank: Option<(String, i64, i64)>,
    /// Indices into `Watched::ranks` of those that are shown, in order.
    pub(crate) order: Vec<u32>,
    ordered: Option<(u64, Sort, String)>,
    /// Questions that were typed, the last one last.
    typed: Vec<String>,
    recalled: usize,
}

impl Default for App {
    fn default() -> Self {
        Self {
            view: View::Ranks,
            before: View::Ranks,
            overlay: Overlay::None,
            prompt: None,
            filter: String::new(),
            sort: Sort::Worst,
            figure: None,
            zoom: 0,
            is_paused: false,
            selected: [0; View::ALL.len()],
            scrolled: 0,
            page: 10,
            rank: None,
            order: Vec::new(),
            ordered: None,
            typed: Vec::new(),
            recalled: 0,
        }
    }
}

impl App {
    /// Begins with this view.
    #[must_use]
    pub fn at(view: View) -> Self {
        Self { view, ..Self::default() }
    }

    /// The view that is shown.
    #[must_use]
    pub fn view(&self) -> View {
        self.view
    }

    /// The overlay.
    #[must_use]
    pub fn overlay(&self) -> &Overlay {
        &self.overlay
    }

    /// Whether new data is ignored.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// The rank that is shown: host, process, number.
    #[must_use]
    pub fn rank(&self) -> Option<&(String, i64, i64)> {
        self.rank.as_ref()
    }

    /// Shows a text over the view.
    pub fn show_text(&mut self, title: &str, body: String) {
        (self.overlay, self.scrolled) = (Overlay::Text(title.to_owned(), body), 0);
    }

    /// Windows that a column of the heat map stands for.
    pub(crate) fn zoom(&self) -> usize {
        ZOOMS[self.zoom]
    }

    /// The figure of the heat map.
    pub(crate) fn figure(&self, data: &Data) -> Figure {
        self.figure.unwrap_or_else(|| data.windows().lateness())
    }

    pub(crate) fn selected(&self) -> usize {
        self.selected[self.view.index()]
    }

    /// A key was pressed.
    pub fn key(&mut self, key: Key, data: &Data) -> Option<Wish> {
        if key == Key::Interrupt {
            return Some(Wish::Quit);
        }
        if let Some(prompt) = self.prompt.take() {
            return self.typing(prompt, key);
        }
        if self.overlay != Overlay::None {
            return self.over(key);
        }
        self.order(data);
        match key {
            Key::Char('q') => return Some(Wish::Quit),
            Key::Char(digit @ '1'..='8') => return self.go(View::ALL[digit as usize - '1' as usize], data),
            Key::Tab => return self.go(View::ALL[(self.view.index() + 1) % View::ALL.len()], data),
            Key::BackTab => {
                return self.go(View::ALL[(self.view.index() + View::ALL.len() - 1) % View::ALL.len()], data);
            }
            Key::Enter => return self.enter(data),
            Key::Esc => return self.leave(),
            Key::Char('?' | 'h') => (self.overlay, self.scrolled) = (Overlay::Help, 0),
            Key::Char('/') => self.prompt = Some(Prompt::Filter(self.filter.clone())),
            Key::Char(':') => (self.prompt, self.recalled) = (Some(Prompt::Sql(String::new())), self.typed.len()),
            Key::Char('s') => self.sort = self.sort.next(),
            Key::Char('m') => {
                self.figure = Some(match self.figure(data) {
                    Figure::Late => Figure::Held,
                    Figure::Held => Figure::Wait,
                    Figure::Wait => Figure::Compute,
                    Figure::Compute => Figure::Late,
                });
            }
            Key::Char('+' | '=') => self.zoom = self.zoom.saturating_sub(1),
            Key::Char('-') => self.zoom = (self.zoom + 1).min(ZOOMS.len() - 1),
            Key::Char(' ') => self.is_paused = !self.is_paused,
            Key::Char('[') => return self.step(data, -1),
            Key::Char(']') => return self.step(data, 1),
            Key::Char('{') => return self.step(data, -10),
            Key::Char('}') => return self.step(data, 10),
            Key::Char('0') if data.show_at.is_some() && !data.is_stores => return Some(Wish::At(None)),
            Key::Char('y') => {
                let sql = self.sql(data);
                self.show_text("the SQL of this view", sql.clone());
                return Some(Wish::Copy(sql));
            }
            Key::Char('e') => return Some(Wish::Export(self.view)),
            Key::Char('z') => return Some(Wish::Suspend),
            other => self.scroll(other, data),
        }
        None
    }

    /// The SQL that gives the figures of the view again.
    #[must_use]
    pub fn sql(&self, data: &Data) -> String {
        let rank = self.rank.as_ref().map(|(node, pid, _)| (node.as_str(), *pid));
        questions::of_view(self.view, data.watched.as_ref(), rank, data.show_at)
    }

    fn typing(&mut self, prompt: Prompt, key: Key) -> Option<Wish> {
        let (is_sql, mut text) = match prompt {
            Prompt::Filter(text) => (false, text),
            Prompt::Sql(text) => (true, text),
        };
        match key {
            Key::Esc => {
                if !is_sql {
                    self.filter.clear();
                }
                return None;
            }
            Key::Enter if is_sql => {
                let sql = text.trim().trim_end_matches(';').to_owned();
                if sql.is_empty() {
                    return None;
                }
                self.typed.push(sql.clone());
                (self.overlay, self.scrolled) = (Overlay::Answer, 0);
                return Some(Wish::Ask(sql));
            }
            Key::Enter => {
                self.filter = text;
                self.selected = [0; View::ALL.len()];
                return None;
            }
            Key::Backspace => drop(text.pop()),
            Key::Up if is_sql => {
                self.recalled = self.recalled.saturating_sub(1);
                text = self.typed.get(self.recalled).cloned().unwrap_or(text);
            }
            Key::Down if is_sql => {
                self.recalled = (self.recalled + 1).min(self.typed.len());
                text = self.typed.get(self.recalled).cloned().unwrap_or_default();
            }
            Key::Char(typed) if !typed.is_control() && text.len() < LONGEST => text.push(typed),
            _ => {}
        }
        if !is_sql {
            // What is typed filters at once.
            self.filter.clone_from(&text);
        }
        self.prompt = Some(if is_sql { Prompt::Sql(text) } else { Prompt::Filter(text) });
        None
    }

    fn over(&mut self, key: Key) -> Option<Wish> {
        match key {
            Key::Up | Key::Char('k') => self.scrolled = self.scrolled.saturating_sub(1),
            Key::Down | Key::Char('j') => self.scrolled = self.scrolled.saturating_add(1),
            Key::PageUp => self.scrolled = self.scrolled.saturating_sub(self.page),
            Key::PageDown => self.scrolled = self.scrolled.saturating_add(self.page),
            Key::Home => self.scrolled = 0,
            Key::Char(':') if self.overlay == Overlay::Answer => {
                (self.overlay, self.prompt) = (Overlay::None, Some(Prompt::Sql(String::new())));
                self.recalled = self.typed.len();
            }
            Key::Char('e') if self.overlay == Overlay::Answer => return Some(Wish::ExportAnswer),
            Key::Esc | Key::Enter | Key::Char('q' | '?' | 'y') => self.overlay = Overlay::None,
            _ => {}
        }
        None
    }

    fn go(&mut self, view: View, data: &Data) -> Option<Wish> {
        if view != View::Rank {
            self.view = view;
            return None;
        }
        let chosen = self.rank.clone().or_else(|| self.chosen(data));
        if self.view != View::Rank {
            self.before = self.view;
        }
        self.view = View::Rank;
        self.rank = chosen;
        self.rank.clone().map(|(node, pid, rank)| Wish::Detail(node, pid, rank))
    }

    /// The rank that is selected in the list, else the worst.
    fn chosen(&self, data: &Data) -> Option<(String, i64, i64)> {
        let at = if matches!(self.view, View::Ranks | View::Heat) { self.selected() } else { 0 };
        let of = |rank: &RankNow| (rank.node.clone(), rank.pid, rank.rank);
        data.watched.as_ref()?.ranks.get(*self.order.get(at)? as usize).map(of)
    }

    fn enter(&mut self, data: &Data) -> Option<Wish> {
        match self.view {
            View::Verdict | View::Ranks | View::Heat => {
                self.rank = self.chosen(data);
                self.go(View::Rank, data)
            }
            View::Jobs => {
                let jobs = &data.watched.as_ref()?.jobs;
                let job = self.jobs(data).get(self.selected()).and_then(|at| jobs.get(*at))?;
                let id = job.id.clone();
                self.view = View::Ranks;
                self.rank = None;
                self.selected = [0; View::ALL.len()];
                Some(Wish::Job(id))
            }
            View::Nodes => {
                let nodes = &data.watched.as_ref()?.nodes;
                let node = self.nodes(data).get(self.selected()).and_then(|at| nodes.get(*at))?;
                self.filter.clone_from(&node.name);
                (self.view, self.selected) = (View::Ranks, [0; View::ALL.len()]);
                None
            }
            View::Findings => {
                let row = data.findings.rows.get(*self.findings(data).get(self.selected())?)?;
                let at_ns = row.first()?.parse().ok()?;
                self.view = View::Verdict;
                Some(Wish::At(Some(at_ns)))
            }
            View::Services => {
                let row = data.services.rows.get(*self.services(data).get(self.selected())?)?;
                let service = row.first()?.clone();
                self.show_text(&slowest_of(&service), "asking ...".to_owned());
                Some(Wish::Tail(service))
            }
            View::Rank => None,
        }
    }

    fn leave(&mut self) -> Option<Wish> {
        if self.view == View::Rank {
            self.view = self.before;
        } else if !self.filter.is_empty() {
            self.filter.clear();
        } else {
            self.view = View::Ranks;
        }
        None
    }

    /// Goes this many windows back or forward; beyond the newest one the time is now again.
    fn step(&self, data: &Data, windows: i64) -> Option<Wish> {
        let steps = usize::try_from(windows.unsigned_abs()).unwrap_or(1);
        let length_ns = data.window_ns();
        let board = data.windows();
        if windows < 0 {
            let at = board.back(data.show_at, steps);
            // Earlier than the windows that are there: the front end fetches those.
            let from = data.show_at.or(data.board_span().map(|(_, last)| last));
            let from = from.or(data.watched.as_ref().map(|watched| watched.at_ns))?;
            return Some(Wish::At(Some(at.unwrap_or(from.saturating_add(windows.saturating_mul(length_ns))))));
        }
        let at = data.show_at?;
        match board.forward(at, steps) {
            Some(end) => Some(Wish::At(Some(end))),
            None if data.is_stores => Some(Wish::At(Some(at.saturating_add(windows.saturating_mul(length_ns))))),
            None => Some(Wish::At(None)),
        }
    }

    fn scroll(&mut self, key: Key, data: &Data) {
        let rows = match self.view {
            View::Ranks | View::Heat => self.order.len(),
            View::Nodes => self.nodes(data).len(),
            View::Jobs => self.jobs(data).len(),
            View::Findings => self.findings(data).len(),
            View::Services => self.services(data).len(),
            // Lines of text: the drawing bounds them.
            View::Verdict | View::Rank => usize::MAX,
        };
        let at = &mut self.selected[self.view.index()];
        *at = match key {
            Key::Up | Key::Char('k') => at.saturating_sub(1),
            Key::Down | Key::Char('j') => at.saturating_add(1),
            Key::PageUp => at.saturating_sub(self.page),
            Key::PageDown => at.saturating_add(self.page),
            Key::Home | Key::Char('g') => 0,
            Key::End | Key::Char('G') if rows < usize::MAX => rows,
            _ => *at,
        }
        .min(rows.saturating_sub(1));
    }

    /// Whether a row with these texts passes the filter; case does not matter.
    fn passes(&self, texts: &[&str]) -> bool {
        self.filter.is_empty() || {
            let filter = self.filter.to_lowercase();
            texts.iter().any(|text| text.to_lowercase().contains(&filter))
        }
    }

    /// Indices of the nodes that are shown.
    pub(crate) fn nodes(&self, data: &Data) -> Vec<usize> {
        let nodes = data.watched.iter().flat_map(|watched| watched.nodes.iter().enumerate());
        let passes = nodes.filter(|(_, node)| self.passes(&[&node.name, &node.state, &node.recording, &node.version]));
        passes.map(|(at, _)| at).collect()
    }

    /// Indices of the jobs that are shown.
    pub(crate) fn jobs(&self, data: &Data) -> Vec<usize> {
        let jobs = data.watched.iter().flat_map(|watched| watched.jobs.iter().enumerate());
        jobs.filter(|(_, job)| self.passes(&[&job.name, &job.verdict, &job.sentence])).map(|(at, _)| at).collect()
    }

    /// Indices of the findings that are shown.
    pub(crate) fn findings(&self, data: &Data) -> Vec<usize> {
        let passes = |row: &Vec<String>| self.passes(&row.iter().map(String::as_str).collect::<Vec<_>>());
        data.findings.rows.iter().enumerate().filter(|(_, row)| passes(row)).map(|(at, _)| at).collect()
    }

    /// Indices of the services that are shown.
    pub(crate) fn services(&self, data: &Data) -> Vec<usize> {
        let passes = |row: &Vec<String>| self.passes(&row.iter().take(2).map(String::as_str).collect::<Vec<_>>());
        data.services.rows.iter().enumerate().filter(|(_, row)| passes(row)).map(|(at, _)| at).collect()
    }

    /// Sorts the ranks, where anything changed.
    pub(crate) fn order(&mut self, data: &Data) {
        let is_known = self.ordered.as_ref().is_some_and(|(version, sort, filter)| {
            *version == data.version && *sort == self.sort && *filter == self.filter
        });
        if is_known {
            return;
        }
        self.ordered = Some((data.version, self.sort, self.filter.clone()));
        self.order.clear();
        let Some(watched) = &data.watched else { return };
        let passes = |rank: &RankNow| {
            self.filter.is_empty() || {
                let number = rank.rank.to_string();
                // A number means the rank of that number.
                match self.filter.parse::<i64>() {
                    Ok(wanted) => wanted == rank.rank,
                    Err(_) => self.passes(&[&rank.node, &rank.role, &number]),
                }
            }
        };
        let mut order: Vec<u32> =
            (0..).zip(&watched.ranks).filter(|(_, rank)| passes(rank)).map(|(at, _)| at).collect();
        let of = |at: u32| &watched.ranks[at as usize];
        match self.sort {
            // In the order of the agent.
            Sort::Worst => {}
            Sort::Rank => order.sort_by_key(|at| (of(*at).rank, *at)),
            Sort::Node => order.sort_by(|a, b| (&of(*a).node, of(*a).rank).cmp(&(&of(*b).node, of(*b).rank))),
            Sort::Late => order.sort_by_key(|at| (std::cmp::Reverse(of(*at).late_ns), *at)),
            Sort::Wait => order.sort_by_key(|at| (std::cmp::Reverse(of(*at).wait_ns), *at)),
        }
        self.order = order;
        let last = self.order.len().saturating_sub(1);
        for view in [View::Ranks, View::Heat] {
            let at = &mut self.selected[view.index()];
            *at = (*at).min(last);
        }
    }
}
