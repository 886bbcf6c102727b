//! The screens of `rankmesh top`: the current state of a mesh, drawn on a terminal.
//!
//! Pure: data in ([`Data`], of the types of `model`), keys in ([`Key`]), a picture out
//! ([`draw`]), and requests ([`Wish`]) to the code that has the sockets. Uses no socket, no file
//! and no real terminal: those are the command's (`node/front/src/top`). The same screens show the
//! current state and a past one (`Data::show_at`): a front end passes in a verdict of the past, and
//! the board has its windows.
//!
//! - `app`: which `view`, what is selected, filtered, sorted, typed; `key`: keys without a
//!   terminal.
//! - `data`: what is shown, with indexes that make a frame of 8,192 ranks cheap.
//! - `views`: a file a view; `look`: colours and characters that the terminal has; `units`: figures
//!   as text. `questions`: the SQL of a view.

mod app;
mod data;
mod key;
mod look;
pub mod questions;
mod units;
mod view;
mod views;

pub use app::{App, Overlay, Wish, slowest_of};
pub use data::{Answer, Data, NodeSample, RankDetail};
pub use key::Key;
pub use look::{Colours, Look};
pub use view::View;
pub use views::{draw, plain};
