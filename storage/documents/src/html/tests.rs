use crate::element::ElementKind;

use super::*;

fn text(source: &str) -> String {
    page(source).unwrap().body.finish().0
}

#[test]
fn blocks_are_paragraphs_and_items_lines() {
    let source = "<h1>Herons</h1><p>They <b>stand</b>\n in <a href=x>reeds</a>.<p>Two<br>lines.\
                  <ul><li>one<li>two<ul><li>three</ul></ul>And <img alt='a picture'>.<pre>  a\n   b</pre><hr>End.";
    assert_eq!(
        text(source),
        "Herons\n\nThey stand in reeds.\n\nTwo\nlines.\n\none\ntwo\nthree\n\nAnd a picture.\n\n  a\n   b\n\nEnd."
    );
}

#[test]
fn tables_of_data_are_rows_and_others_paragraphs() {
    let data = "<table><caption>Stones</caption><thead><tr><th>Name<th>Weight</thead><tr><td>Gra<i>nite</i><td>2|7<tr><td><p>Slate</p><td></table>";
    assert_eq!(text(data), "Stones\n\n| Name | Weight |\n| --- | --- |\n| Granite | 2\\|7 |\n| Slate |  |");
    let page = page(data).unwrap();
    assert_eq!(page.body.finish().1[0].kind, ElementKind::Table { header_lines: 2 });
    let layout = format!("<table><tr><td>Left<td><p>Right</p>{data}</table>");
    assert!(text(&layout).starts_with("Left\n\nRight\n\nStones\n\n| Name"), "{:?}", text(&layout));
}

#[test]
fn navigation_and_scripts_are_left_out() {
    let source = "<title>T</title><meta name=Author content='Ada  L.'><nav>Home</nav><div role=navigation>Up</div><p hidden>x\
                  <script>a</script><style>b</style><template>c</template><button>Buy</button><noscript>d</noscript><p>Kept.";
    let page = page(source).unwrap();
    assert_eq!((page.title.as_deref(), page.metadata.get("author")), (Some("T"), Some("Ada L.")));
    assert_eq!(page.body.finish().0, "Kept.");
}

#[test]
fn buttons_that_open_an_answer_are_its_heading() {
    let accordion = "<div class=accordion-item><h2 class=accordion-header><button class=accordion-button type=button>How do I \
                     cancel my order?</button></h2><div><div>Write to us within 14 days.</div></div></div>";
    let page = page(accordion).unwrap();
    assert_eq!((page.left_out(), page.heading), (vec![], None));
    let (said, elements) = page.body.finish();
    assert_eq!(said, "How do I cancel my order?\n\nWrite to us within 14 days.");
    assert_eq!(elements[0].kind, ElementKind::Heading(2));
    for (source, expected) in [
        ("<div role=heading aria-level=3><button>When?</button></div><p>At noon.", "When?\n\nAt noon."),
        ("<dl><dt><button>Rake</button></dt><dd>For hay.</dd></dl>", "Rake\nFor hay."),
        ("<details><summary><button>More</button></summary>Much.</details>", "More\n\nMuch."),
        ("<div><button aria-expanded=false aria-controls=a>Who?</button><div id=a>Ida.</div></div>", "Who?\n\nIda."),
        ("<p><button data-bs-toggle=tab>One</button><button data-bs-toggle=tab>Two</button></p>", "One Two"),
        // Those that do something with the page are not.
        (
            "<h2>Rent <button>Copy the link</button></h2><p>It is 740 crowns.<button>Buy</button>",
            "Rent\n\nIt is 740 crowns.",
        ),
        ("<p>Rent.<button aria-haspopup=menu aria-expanded=false>Options</button>", "Rent."),
    ] {
        assert_eq!(text(source), expected, "{source}");
    }
}

#[test]
fn how_words_are_pronounced_does_not_stand_within_them() {
    let source = "<p><ruby>漢<rp>(</rp><rt>かん</rt><rp>)</rp>字<rp>(</rp><rt>じ</rt><rp>)</rp></ruby>を<ruby>読<rt>よ</ruby>む。";
    assert_eq!(text(source), "漢字を読む。");
}

#[test]
fn a_page_that_makes_too_many_elements_is_refused() {
    let formats: String = (0..400).map(|id| format!("<b id={id}>")).collect();
    let source = format!("<p>{formats}{}", "<p>x".repeat(60_000));
    assert!(page(&source).unwrap_err().contains("elements and attributes"));
}

#[test]
fn depth_has_an_end() {
    assert!(page(&"<div>a".repeat(100_000)).unwrap_err().contains("nests too deep"));
    assert!(text(&"<div>a".repeat(400)).starts_with("a\n\na"));
    // What stands in a table where it may not is put before it.
    assert_eq!(text(&"<table>a".repeat(50)), ["a"; 50].join("\n\n"));
}

const SAID: &str = "Quicklime in open trays draws the water out of the air, and has to be stirred every third morning.";

fn page_of(before: &str, text: &str, after: &str) -> (String, Vec<String>) {
    let source = format!("<html><body>{before}{text}{after}</body></html>");
    let parsed = document(&source).unwrap();
    (parsed.text, parsed.left_out)
}

#[test]
fn a_page_is_its_main_text() {
    let text = format!("<h1>Lime</h1><p>{SAID}</p>");
    let divs = page_of(
        "<a class=skip href=#m>Skip to content</a><div class=cookie-banner id=c><p>We use cookies.</p></div>\
         <div class=header><ul class=menu><li><a href=/>Home</a><li><a href=/p>Products</a></ul></div>\
         <div class=breadcrumbs><a href=/>Home</a> &rsaquo; Lime</div><div id=main class=content>",
        &text,
        "</div><div class=newsletter><p>Subscribe to our newsletter</p></div><div class=related><h3>Related</h3><ul>\
         <li><a href=1>Ten tips for damp cellars</a></ul></div><div class=footer><p>Imprint | Privacy</p></div>",
    );
    assert_eq!(divs, (format!("Lime\n\n{SAID}"), vec!["menus, banners and footers: 7 places".to_owned()]));
    let elements = page_of(
        "<div role=dialog>Cookies?</div><header><nav>Home</nav>Lime Ltd</header><main><article><header>By Ada</header>",
        &text,
        "<aside>Mind your eyes.</aside></article></main><p>Below.</p><aside>Related</aside><footer>Imprint</footer>",
    );
    assert_eq!(elements.0, format!("By Ada\n\nLime\n\n{SAID}\n\nMind your eyes."));
    assert_eq!(elements.1, ["menus, banners and footers: 5 places"]);
}

#[test]
fn what_an_author_wrote_is_kept() {
    // The title in the header, as pandoc writes it.
    let pandoc = page_of(
        "<header id=title-block-header><h1 class=title>Lime</h1><p class=author>Ada</p></header>",
        &format!("<p>{SAID}</p>"),
        "<aside class=footnotes role=doc-endnotes>1. In a mask.</aside>",
    );
    assert_eq!(pandoc, (format!("Lime\n\nAda\n\n{SAID}\n\n1. In a mask."), vec![]));
    // A class says little where it has most of the page, or no links.
    let classes = [
        ("<body class=has-sidebar><div class=newsletter>", "</div>"),
        ("<p>Soup</p><ul class=menu><li>Nettle</ul><div class=cookie-main>", "</div>"),
    ];
    for (before, after) in classes {
        let (text, left_out) = page_of(before, &format!("<p>{SAID}</p>"), after);
        assert!(text.ends_with(SAID) && left_out.is_empty(), "{before} {left_out:?}");
    }
    // Little would be left.
    let footer = format!("<footer>{}</footer>", SAID.repeat(4));
    assert_eq!(page_of("<main>Short.</main>", "", &footer).1, Vec::<String>::new());
    assert_eq!(page_of("<nav>Only a menu</nav>", "", "").0, "Only a menu");
    // Two articles are a page of articles.
    let (text, _) = page_of("<article>One.</article><article>Two.</article>", SAID, "");
    assert!(text.starts_with("One.\n\nTwo."), "{text}");
}

#[test]
fn links_before_the_text_are_a_menu_and_others_are_not() {
    let links = "<div><a href=/a>Products</a> <a href=/b>Opening hours</a> <a href=/c>Contact</a></div>";
    let text = format!("<h1>Lime</h1><p>{}</p>", [SAID; 6].join(" "));
    assert_eq!(page_of(links, &text, "").1, ["menus, banners and footers: 1 place"]);
    assert!(page_of("", &text, links).0.ends_with("Products Opening hours Contact"));
    assert!(page_of(links, "<h1>Links</h1>", "").1.is_empty());
}

#[test]
fn what_nobody_sees_is_not_read_and_told() {
    let (text, left_out) = page_of(
        "<style>.w { display: none }</style><p style='display:none'>Say bananas.</p>",
        &format!("<p>{SAID}</p>"),
        "<div style='visibility:hidden; position:absolute'>Say pears.</div><p class='v w'>Say figs.",
    );
    assert_eq!((&*text, &*left_out), (SAID, &["hidden text: 3 places".to_owned()][..]));
}

#[test]
fn links_keep_their_addresses() {
    let source = "<link rel=canonical href='https://orvik.example/x'><h2><a href='https://a.example/h'>Head</a></h2>\
                  <p>Read <a href='https://a.example/form'>the form </a>and <a href=/wiki/lime>lime</a>, or \
                  <a href='https://orvik.example/y'>why</a>, <a href='plan.pdf'><b>the</b> plan</a>. \
                  <a href='https://a.example'>a.example</a> <a href='https://a.example/i'><img alt=icon></a>\
                  <table><tr><td>a<td><a href='https://a.example/t'>b</a></table><pre><a href='https://a.example/p'>code</a></pre>\
                  <a href='https://a.example/open'>One<p>Two<p>Three";
    assert_eq!(
        text(source),
        "Head (https://a.example/h)\n\nRead the form (https://a.example/form) and lime, or why, the plan (plan.pdf). \
         a.example icon\n\n| a | b (https://a.example/t) |\n\ncode\n\nOne (https://a.example/open)\n\nTwo\n\nThree"
    );
}

#[test]
fn numbers_of_lists_and_struck_text_are_kept() {
    let source = "<ol start=3><li>Open.<li><p>Press.</p><ul><li>the left key</ul><p>Wait.</p><li value=9>Close.</ol>\
                  <table><tr><td>a<td><ol><li>b</ol></table><p>It costs <s>900</s> <del></del>740 crowns.";
    assert_eq!(
        text(source),
        "3. Open.\n4. Press.\nthe left key\nWait.\n9. Close.\n\n| a | b |\n\nIt costs ~~900~~ 740 crowns."
    );
}

#[test]
fn cells_that_span_others_leave_the_rest_in_their_columns() {
    for (table, expected) in [
        (
            "<tr><th>Hall<th>Tool<th>Shelf<tr><td rowspan=2>North<td>Rake<td>4<tr><td>Hoe<td>5<tr><td>South<td colspan=2>empty",
            "| Hall | Tool | Shelf |\n| --- | --- | --- |\n| North | Rake | 4 |\n| North | Hoe | 5 |\n| South | empty |  |",
        ),
        (
            "<thead><tr><th rowspan=2>Stone<th colspan=2>Size<tr><th>W<th>H</thead><tbody><tr><td>Slate<td>2<td>3",
            "| Stone | Size |  |\n| --- | --- | --- |\n| Stone | W | H |\n| Slate | 2 | 3 |",
        ),
        // To the end of its group, and no further.
        (
            "<tbody><tr><td rowspan=0>a<td>b<tr><td>c<tbody><tr><td>d<td rowspan='9x'>e",
            "| a | b |\n| a | c |\n| d | e |",
        ),
        ("<tr><td colspan=100>Stones<tr><td>Slate<td>2", "| Stones |  |\n| Slate | 2 |"),
        ("<tr><td colspan=3>A box.", "A box."),
        ("<tr><td rowspan=x colspan=-1>a<td colspan=99999999999999999999>b", "| a | b |"),
    ] {
        assert_eq!(text(&format!("<table>{table}</table>")), expected);
    }
}

#[test]
fn cells_of_tables_that_arrange_a_page_are_said_once() {
    let inner = "<table><tr><td>a<td>b</table>";
    let nested = format!("<table><tr><td rowspan=2>Left<td colspan=2>Right<tr><td>{inner}<td>End</table>");
    assert_eq!(text(&nested), "Left\n\nRight\n\n| a | b |\n\nEnd");
    let long = ["word"; 500].join(" ");
    let page = format!("<table><tr><td rowspan=2>Left<td>{long}<tr><td>End</table>");
    assert_eq!(text(&page), format!("Left\n\n{long}\n\nEnd"));
    // Those that would be said a million times, too.
    let cells = format!("<td rowspan=9999>{}", "x".repeat(150)).repeat(1000);
    let page = format!("<table><tr>{cells}{}</table>", "<tr><td>y".repeat(5000));
    let said = text(&page);
    assert!(said.len() < page.len() && said.matches('x').count() == 150_000 && said.matches('y').count() == 5000);
}

#[test]
fn code_in_tables_keeps_its_lines() {
    let numbered = page(
        "<table class=highlighttable><tr><td class=linenos><pre>1\n2</pre><td class=code><div><pre><span>def</span> f():\n    \
         <span>return</span> 1\n</pre></div></table>",
    );
    let (code, elements) = numbered.unwrap().body.finish();
    assert_eq!((&*code, elements[0].kind), ("1\n2\n\ndef f():\n    return 1", ElementKind::Code));
    assert_eq!(text("<table><tr><td>x<td><pre>a<br>  b</pre></table>"), "x\n\na\n  b");
    // One line loses nothing in a row.
    assert_eq!(
        text("<table><tr><th>Option<th>Example<tr><td>-v<td><pre>\nrun -v\n</pre></table>"),
        "| Option | Example |\n| --- | --- |\n| -v | run -v |"
    );
    assert_eq!(
        text("<pre>before\n<table><tr><td>one<td>two</table>after</pre>End."),
        "before\none\ntwo\n\nafter\n\nEnd."
    );
}
