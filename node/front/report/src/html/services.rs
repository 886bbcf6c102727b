//! Services: how long their requests took, by host, and what the slowest waited for.

use std::fmt::Write as _;

use super::escape::text;
use super::figures::marks;
use super::sections::{list, table};
use super::{Asked, Page, ServiceChapter};

/// The chapter of each.
pub(super) fn section(page: &Page) -> String {
    let services = page.services.iter().map(of_service);
    let left_out = match page.services_left_out {
        0 => String::new(),
        many => format!("<p>{many} more services had fewer requests (rankmesh tail --service NAME).</p>"),
    };
    // Of a job other parts have these.
    let besides = match page.without_job {
        true => {
            let lacking = page.lacking.iter().map(|(part, why)| format!("{part}: {why}"));
            marks(page) + &list("Parts of this page that could not be made", lacking)
        }
        false => String::new(),
    };
    services.chain([left_out, besides]).collect()
}

fn of_service(of: &ServiceChapter) -> String {
    let mut out = format!("<h3>{}</h3>\n", text(&of.name));
    let put = |sentences: &[String], out: &mut String| {
        sentences.iter().for_each(|sentence| {
            let _ = write!(out, "<p>{}</p>", text(sentence));
        });
    };
    put(&of.lead, &mut out);
    let caption = "How long requests took: half of them no longer than p50, 99 % no longer than p99 (within 1.2 %).";
    out += &table(&of.hosts, caption, "Requests by host");
    put(of.excess.as_slice(), &mut out);
    let some = |asked: &Asked, caption: &str, label: &str| match asked.rows.is_empty() {
        true => String::new(),
        false => table(asked, caption, label),
    };
    out += &some(&of.parts, "What the slowest have more of than ordinary requests, on average.", "Parts of the excess");
    out += &some(&of.causes, "The slowest by what most delays each of them.", "Causes");
    put(&of.beyond, &mut out);
    for chain in &of.examples {
        let links: String = chain.links.iter().map(|link| format!("<li>{}</li>", text(link))).collect();
        let _ = writeln!(out, "<p>{}</p><ol>{links}</ol>", text(&chain.head));
    }
    out
}
