//! One HTML file that needs nothing else: no script, no font, no host.

use std::fmt::Write;

use super::svg::{Svg, escape};

/// A column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column<'a> {
    name: &'a str,
    is_number: bool,
}

impl<'a> Column<'a> {
    /// Words, flush left.
    pub fn words(name: &'a str) -> Self {
        Self {
            name,
            is_number: false,
        }
    }

    /// Figures, flush right.
    pub fn figures(name: &'a str) -> Self {
        Self {
            name,
            is_number: true,
        }
    }
}

/// A page that is written from top to bottom. Every text is escaped.
#[derive(Clone, Debug)]
pub struct Page {
    title: String,
    body: String,
}

impl Page {
    /// An empty page with its title as the heading.
    pub fn new(title: &str) -> Self {
        let title = escape(title);
        let body = format!("<h1>{title}</h1>\n");
        Self { title, body }
    }

    /// The heading of a section.
    pub fn heading(&mut self, text: &str) -> &mut Self {
        self.element("h2", "", text)
    }

    /// The heading of a part of a section.
    pub fn subheading(&mut self, text: &str) -> &mut Self {
        self.element("h3", "", text)
    }

    /// A paragraph.
    pub fn paragraph(&mut self, text: &str) -> &mut Self {
        self.element("p", "", text)
    }

    /// A paragraph that must not be overlooked.
    pub fn warning(&mut self, text: &str) -> &mut Self {
        self.element("p", " class=\"warning\"", text)
    }

    /// Text as it is, in a font of one width.
    pub fn preformatted(&mut self, text: &str) -> &mut Self {
        let lines: Vec<String> = text.lines().map(escape).collect();
        let _ = writeln!(self.body, "<pre>{}</pre>", lines.join("\n"));
        self
    }

    /// The figures that a reader came for, as (what, how much), side by side.
    pub fn figures(&mut self, figures: &[(&str, String)]) -> &mut Self {
        self.body.push_str("<dl class=\"figures\">\n");
        for (what, how_much) in figures {
            let _ = writeln!(
                self.body,
                "<div><dt>{}</dt><dd>{}</dd></div>",
                escape(what),
                escape(how_much)
            );
        }
        self.body.push_str("</dl>\n");
        self
    }

    /// A table. A row that is shorter than the columns is filled up, a longer one is cut off.
    pub fn table(&mut self, caption: &str, columns: &[Column<'_>], rows: &[Vec<String>]) -> &mut Self {
        let _ = write!(
            self.body,
            "<div class=\"wide\"><table><caption>{}</caption>\n<thead><tr>",
            escape(caption)
        );
        for column in columns {
            let _ = write!(
                self.body,
                "<th scope=\"col\"{}>{}</th>",
                column.class(),
                escape(column.name)
            );
        }
        self.body.push_str("</tr></thead>\n<tbody>\n");
        for row in rows {
            self.body.push_str("<tr>");
            let cells = row.iter().map(String::as_str).chain(std::iter::repeat(""));
            for (column, cell) in columns.iter().zip(cells) {
                let _ = write!(self.body, "<td{}>{}</td>", column.class(), escape(cell));
            }
            self.body.push_str("</tr>\n");
        }
        self.body.push_str("</tbody></table></div>\n");
        self
    }

    /// A chart.
    pub fn chart(&mut self, svg: &Svg) -> &mut Self {
        let _ = writeln!(self.body, "<figure>{svg}</figure>");
        self
    }

    /// A chart under its title.
    pub fn titled_chart(&mut self, title: &str, svg: &Svg) -> &mut Self {
        let _ = writeln!(
            self.body,
            "<figure><figcaption>{}</figcaption>{svg}</figure>",
            escape(title)
        );
        self
    }

    /// The whole file.
    pub fn finish(self) -> String {
        let Self { title, body } = self;
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
             <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
        )
    }

    fn element(&mut self, name: &str, attributes: &str, text: &str) -> &mut Self {
        let _ = writeln!(self.body, "<{name}{attributes}>{}</{name}>", escape(text));
        self
    }
}

impl Column<'_> {
    fn class(self) -> &'static str {
        if self.is_number { " class=\"number\"" } else { "" }
    }
}

/// Series differ in dashes too, for readers who don't tell their colours apart. All colours of lines have a contrast of
/// 3:1 and more to their ground, texts 4.5:1 (WCAG 2.2, 1.4.3 and 1.4.11).
const STYLE: &str = "\
:root{--ground:#fff;--text:#1c2430;--quiet:#5a6473;--rule:#d9dee5;--warn:#8f1d14;--warn-ground:#fdecea;\
--c0:#0b62a8;--c1:#b35300;--c2:#1a7a45;--c3:#a3237a;--c4:#6a4bb8;--c5:#7a6200;--c6:#0b7c86;--c7:#5a6473}\n\
@media (prefers-color-scheme:dark){:root{--ground:#12161c;--text:#e4e8ee;--quiet:#a3adba;--rule:#333b46;--warn:#ffb4a9;\
--warn-ground:#3b1a17;--c0:#6db3f2;--c1:#f5a35c;--c2:#6fd396;--c3:#ef8ccb;--c4:#b9a3f5;--c5:#dcc35a;--c6:#62cfd9;--c7:#a3adba}}\n\
body{margin:0;background:var(--ground);color:var(--text);font:16px/1.5 system-ui,sans-serif}\n\
main{max-width:60rem;margin:0 auto;padding:1rem 1.25rem 3rem}\n\
h1{font-size:1.6rem}h2{font-size:1.25rem;margin-top:2.2rem}h3{font-size:1rem;margin-top:1.6rem}\n\
.warning{color:var(--warn);background:var(--warn-ground);padding:.6rem .8rem;border-left:4px solid}\n\
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.8rem;margin:1rem 0}\n\
.figures div{border:1px solid var(--rule);border-radius:6px;padding:.5rem .8rem}\n\
dt{color:var(--quiet);font-size:.85rem}dd{margin:0;font-size:1.25rem;font-variant-numeric:tabular-nums}\n\
.wide{overflow-x:auto}table{border-collapse:collapse;margin:.8rem 0;font-size:.92rem}\n\
caption{text-align:left;color:var(--quiet);padding-bottom:.3rem}\n\
th,td{text-align:left;padding:.25rem .9rem .25rem 0;border-bottom:1px solid var(--rule);vertical-align:top}\n\
.number{text-align:right;font-variant-numeric:tabular-nums}\n\
pre{overflow-x:auto;font-size:.85rem}\n\
figure{margin:1rem 0}figcaption{font-weight:600;margin-bottom:.3rem}\n\
.chart{display:block;width:100%;height:auto;overflow:visible}\n\
.chart .tick,.chart .name{fill:var(--quiet)}\n\
.chart .grid{stroke:var(--rule)}.chart .axis{stroke:var(--quiet)}\n\
.chart .line{fill:none;stroke:currentColor;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}\n\
.chart .area{fill:currentColor;opacity:.16}.chart .bar{fill:currentColor;opacity:.85}\n\
.c0{color:var(--c0)}.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}\
.c4{color:var(--c4)}.c5{color:var(--c5)}.c6{color:var(--c6)}.c7{color:var(--c7)}\n\
.line.c1{stroke-dasharray:7 3}.line.c3{stroke-dasharray:2 4}.line.c5{stroke-dasharray:9 3 2 3}.line.c7{stroke-dasharray:4 4}\n\
@media print{:root{--ground:#fff;--text:#000}}\n";

#[cfg(test)]
mod tests {
    use super::super::{Axis, Bar, Bars, Unit};
    use super::*;

    fn page() -> String {
        let bars = Bars {
            title: "<bars>".into(),
            description: "x".into(),
            names: "lane".into(),
            values: Axis::new("refused", Unit::Count),
            bars: vec![Bar::new("a", 1.0)],
        };
        let mut page = Page::new("Storm of <sensor-*>");
        page.heading("What & when")
            .subheading("part")
            .paragraph("it's \"over\"")
            .warning("broken")
            .preformatted("a <b>\nc")
            .figures(&[("devices", "1,204".into())])
            .table(
                "who <hammered>",
                &[Column::words("client"), Column::figures("attempts")],
                &[
                    vec!["<script>alert(1)</script>".into(), "7".into(), "cut".into()],
                    vec!["short".into()],
                ],
            )
            .titled_chart("By lane", &bars.svg());
        page.finish()
    }

    #[test]
    fn a_page_holds_what_was_put_in_and_escapes_it() {
        let html = page();
        for part in [
            "<title>Storm of &lt;sensor-*&gt;</title>",
            "<h1>Storm of &lt;sensor-*&gt;</h1>",
            "<h2>What &amp; when</h2>",
            "<p>it&#39;s &quot;over&quot;</p>",
            "<p class=\"warning\">broken</p>",
            "<pre>a &lt;b&gt;\nc</pre>",
            "<dt>devices</dt><dd>1,204</dd>",
            "<th scope=\"col\" class=\"number\">attempts</th>",
            "<td>&lt;script&gt;alert(1)&lt;/script&gt;</td><td class=\"number\">7</td></tr>",
            "<td>short</td><td class=\"number\"></td>",
            "<figcaption>By lane</figcaption><svg",
        ] {
            assert!(html.contains(part), "no {part} in {html}");
        }
        assert!(!html.contains("cut") && !html.contains("<script"));
    }

    #[test]
    fn a_page_needs_no_host_and_no_script() {
        let html = page().replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        for word in [
            "http:", "https:", "//", "src=", "href=", "url(", "@import", "<script",
        ] {
            assert!(!html.contains(word), "{word} in {html}");
        }
        assert!(html.contains("default-src 'none'"));
    }

    /// Every opened element is closed, in order: a browser would mend it in silence, and a reader of XML would not.
    #[test]
    fn elements_are_nested() {
        let html = page();
        let mut open: Vec<&str> = Vec::new();
        for part in html.split('<').skip(1) {
            let tag = part.split('>').next().unwrap();
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name), "{html}");
            } else if !tag.ends_with('/') && !tag.starts_with("meta") && !tag.starts_with("!DOCTYPE") {
                open.push(tag.split(' ').next().unwrap());
            }
        }
        assert_eq!(open, Vec::<&str>::new());
    }
}
