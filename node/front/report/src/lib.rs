//! Output made of rows and verdicts for other programs: a job as one HTML file ([`html`]), its rows
//! as a trace for Perfetto ([`perfetto`]).
//!
//! Values in, bytes out: no sockets, no questions here. The command line asks them.

pub mod html;
pub mod perfetto;
