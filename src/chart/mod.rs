//! Charts as values: SVG for a page, block characters for a terminal, and the page itself. No file, no socket, no
//! script, no foreign host: what comes out can be mailed, archived and opened without a network.
//!
//! A [`Lines`], [`Bars`] or [`Distribution`] is filled by its caller and drawn with `svg()` or `text(…)`. Colours come
//! from the style of [`Page`] (light and dark by the reader's setting); outside of a `Page` the shapes are drawn in the
//! colour of the text. Every text is escaped here, so names from the network can be handed in as they came.
//!
//! ```
//! use seawall::chart::{Axis, Lines, Page, Series, Unit};
//!
//! let arrivals = Lines {
//!     title: "Arrivals".into(),
//!     description: "Attempts a second since the tower came back.".into(),
//!     x: Axis::new("since the tower came back", Unit::Seconds),
//!     y: Axis::new("attempts", Unit::PerSecond),
//!     series: vec![Series::line("arrivals", vec![(0.0, 1204.0), (1.0, 80.0), (2.0, 12.0)])],
//! };
//! println!("{}", arrivals.text(80, 4));
//! let mut page = Page::new("Storm");
//! page.heading("Over time").chart(&arrivals.svg());
//! let html = page.finish();
//! ```

mod bars;
mod distribution;
mod lines;
mod page;
mod scale;
mod svg;
mod terminal;

pub use self::bars::{Bar, Bars};
pub use self::distribution::{Bin, Distribution};
pub use self::lines::{Lines, Series, Shape};
pub use self::page::{Column, Page};
pub use self::scale::{Axis, Unit, grouped};
pub use self::svg::{Svg, escape};
