//! The terminal's capabilities: colours and characters.

use jiff::tz::TimeZone;
use ratatui::style::{Color, Modifier, Style};

/// Colours that a terminal has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colours {
    /// None (`NO_COLOR`).
    None,
    /// The 16 of ANSI.
    Ansi,
    /// 256.
    Indexed,
    /// 24 bits.
    Rgb,
}

/// How screens are drawn.
#[derive(Debug, Clone)]
pub struct Look {
    /// Colours.
    pub colours: Colours,
    /// Only characters of ASCII.
    pub ascii: bool,
    /// The zone of times of day.
    pub zone: TimeZone,
}

/// Shares of a window from which a cell of the heat map has the next level.
pub(crate) const LEVELS: [f64; 8] = [0.01, 0.02, 0.05, 0.10, 0.15, 0.20, 0.30, 0.50];

/// The level of a share, 0 to 8.
pub(crate) fn level(share: f64) -> usize {
    LEVELS.iter().take_while(|from| share >= **from).count()
}

const RGB: [(u8, u8, u8); 9] = [
    (24, 28, 36),
    (35, 52, 74),
    (38, 77, 98),
    (57, 104, 104),
    (104, 124, 84),
    (160, 134, 60),
    (204, 128, 44),
    (222, 94, 44),
    (232, 48, 48),
];
const INDEXED: [u8; 9] = [234, 236, 24, 30, 65, 136, 172, 202, 196];
const ANSI: [Color; 9] = [
    Color::DarkGray,
    Color::Blue,
    Color::Blue,
    Color::Cyan,
    Color::Green,
    Color::Yellow,
    Color::LightYellow,
    Color::LightRed,
    Color::Red,
];

impl Look {
    /// The character and style of a cell of the heat map; without a value, of an empty one.
    pub(crate) fn heat(&self, level: Option<usize>) -> (char, Style) {
        let Some(level) = level.map(|level| level.min(8)) else { return (' ', Style::default()) };
        let ramp: [char; 9] = if self.ascii {
            ['.', ':', '-', '=', '+', 'x', '*', '#', '@']
        } else {
            ['·', '░', '░', '▒', '▒', '▓', '▓', '█', '█']
        };
        match self.colours {
            Colours::None => (ramp[level], Style::default()),
            Colours::Ansi => (ramp[level], Style::default().fg(ANSI[level])),
            Colours::Indexed => (self.blank(level), Style::default().bg(Color::Indexed(INDEXED[level]))),
            Colours::Rgb => {
                let (r, g, b) = RGB[level];
                (self.blank(level), Style::default().bg(Color::Rgb(r, g, b)))
            }
        }
    }

    /// Hot cells differ from cold ones by more than colour.
    fn blank(&self, level: usize) -> char {
        match (level, self.ascii) {
            (7.., true) => '#',
            (7.., false) => '▪',
            _ => ' ',
        }
    }

    /// A character of a sparkline, for 0.0 to 1.0; none: no value.
    pub(crate) fn spark(&self, share: Option<f64>) -> char {
        let ramp: [char; 8] = if self.ascii {
            ['_', '.', ':', '-', '=', '+', '*', '#']
        } else {
            ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']
        };
        let Some(share) = share else { return ' ' };
        ramp[((share.clamp(0.0, 1.0) * 8.0) as usize).min(7)]
    }

    fn coloured(&self, colour: Color) -> Style {
        if self.colours == Colours::None { Style::default() } else { Style::default().fg(colour) }
    }

    /// Style of an error.
    pub(crate) fn bad(&self) -> Style {
        self.coloured(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// Style of a warning.
    pub(crate) fn warn(&self) -> Style {
        self.coloured(Color::Yellow)
    }

    /// Style of a good state.
    pub(crate) fn good(&self) -> Style {
        self.coloured(Color::Green)
    }

    /// Style of minor text.
    pub(crate) fn faint(&self) -> Style {
        if self.colours == Colours::None { Style::default() } else { Style::default().fg(Color::DarkGray) }
    }

    /// Style of names of columns and keys.
    pub(crate) fn head(&self) -> Style {
        Style::default().add_modifier(Modifier::BOLD)
    }

    /// Style of the selected row.
    pub(crate) fn selected(&self) -> Style {
        Style::default().add_modifier(Modifier::REVERSED)
    }

    /// Style of separators within a line.
    pub(crate) fn dot(&self) -> &'static str {
        if self.ascii { " | " } else { " · " }
    }
}
