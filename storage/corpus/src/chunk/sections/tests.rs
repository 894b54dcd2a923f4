use proptest::prelude::*;

use super::*;

fn words(text: &str) -> usize {
    text.split_whitespace().count()
}

/// A text out of marked pieces: `# heading`, `|row|` (the first one a header), `    code`, anything else is text.
fn parse(marked: &str) -> (String, Vec<Element>) {
    let (mut text, mut elements) = (String::new(), Vec::new());
    let mut last = None;
    for line in marked.lines() {
        let level = line.bytes().take_while(|byte| *byte == b'#').count();
        let kind = match line {
            _ if level > 0 => ElementKind::Heading(level as u8),
            _ if line.starts_with('|') => ElementKind::Table { header_lines: 1 },
            _ if line.starts_with("    ") => ElementKind::Code,
            _ => ElementKind::Text,
        };
        if last != Some(kind) || level > 0 {
            elements.push(Element { at: text.len(), kind });
        }
        last = Some(kind);
        text.push_str(line[level..].trim_start_matches(|c| level > 0 && c == ' '));
        text.push('\n');
        if level > 0 {
            text.push('\n');
        }
    }
    (text, elements)
}

fn cut(marked: &str, tokens: usize, overlap: usize) -> Vec<String> {
    let (text, elements) = parse(marked);
    split(&text, &elements, Budget { tokens, overlap }, &words).into_iter().map(|cut| cut.text.into_owned()).collect()
}

#[test]
fn what_fits_is_one_passage() {
    assert_eq!(cut("Lead.\n# One\nText.\n# Two\nMore.", 100, 0), ["Lead.\nOne\n\nText.\nTwo\n\nMore."]);
    assert!(cut("\n", 100, 0).is_empty());
}

#[test]
fn borders_are_headings_first_and_small_neighbours_stay_together() {
    let text = "# Animals\n## Herons\nThey stand in the reeds.\n## Owls\nThey hear mice.\n## Otters\n\
                They open mussels on their bellies all day long.";
    assert_eq!(
        cut(text, 12, 0),
        [
            "Animals\n\nHerons\n\nThey stand in the reeds.\nOwls\n\nThey hear mice.",
            "Animals\n\nOtters\n\nThey open mussels on their bellies all day long."
        ]
    );
}

#[test]
fn a_long_section_is_cut_at_paragraphs_and_told_its_headings() {
    let text = "# Install\n## Linux\nOne two three four five.\n\nSix seven eight nine ten.\n\nAnd eleven more words.";
    assert_eq!(
        cut(text, 10, 0),
        [
            "Install\n\nLinux\n\nOne two three four five.",
            "Linux\n\nSix seven eight nine ten.\n\nAnd eleven more words."
        ],
        "of two headings the inner one alone is short enough"
    );
    assert_eq!(
        cut(text, 14, 0),
        [
            "Install\n\nLinux\n\nOne two three four five.",
            "Install > Linux\n\nSix seven eight nine ten.\n\nAnd eleven more words."
        ]
    );
}

#[test]
fn rows_are_told_their_header() {
    let rows: String = (0..6).map(|number| format!("|stone{number} |{number} kg |\n")).collect();
    let passages = cut(&format!("The stones of the wall:\n|name |weight |\n{rows}"), 14, 0);
    assert_eq!(
        passages,
        [
            "The stones of the wall:",
            "|name |weight |\n|stone0 |0 kg |\n|stone1 |1 kg |",
            "|name |weight |\n|stone2 |2 kg |\n|stone3 |3 kg |",
            "|name |weight |\n|stone4 |4 kg |\n|stone5 |5 kg |"
        ]
    );
}

#[test]
fn code_is_cut_where_its_indentation_ends() {
    let code = "fn a() {\n    let x = 1;\n\n    x\n}\n\nfn b() {\n    2\n}\n\n    fn c() {}\n";
    let elements = [Element { at: 0, kind: ElementKind::Code }];
    let cut = |tokens| -> Vec<String> {
        let cuts = split(code, &elements, Budget { tokens, overlap: 0 }, &words);
        cuts.into_iter().map(|cut| cut.text.into_owned()).collect()
    };
    assert_eq!(cut(100), [code.trim_end()]);
    assert_eq!(cut(9), ["fn a() {\n    let x = 1;\n\n    x\n}", "fn b() {\n    2\n}\n\n    fn c() {}"]);
    let method = "    def f(self):\n        return 1\n";
    let whole = split(method, &elements, Budget { tokens: 100, overlap: 0 }, &words);
    assert_eq!(whole[0].text, method.trim_end(), "what fits keeps its indentation, too");
    // Lines where a definition is longer; the first keeps its indentation.
    assert_eq!(cut(5)[1], "    let x = 1;\n\n    x");
}

#[test]
fn text_overlaps_within_its_section_alone() {
    let text = "# A\nOne two three. Four five six. Seven eight nine. Ten eleven twelve.\n# B\nThe end of it.";
    assert_eq!(
        cut(text, 12, 3),
        [
            "A\n\nOne two three. Four five six.",
            "A\n\nFour five six. Seven eight nine. Ten eleven twelve.",
            "B\n\nThe end of it."
        ]
    );
}

#[test]
fn sections_nest_as_deep_as_they_want() {
    let text: String = (1..=250).map(|level| format!("{} h{level}\nword {level}.\n", "#".repeat(level))).collect();
    let passages = cut(&text, 16, 0);
    assert!(passages.iter().all(|passage| words(passage) <= 16));
    assert!((1..=250).all(|level| passages.iter().any(|passage| passage.contains(&format!("word {level}.")))));
}

proptest! {
    #[test]
    fn no_word_is_lost_and_no_passage_is_too_long(
        lines in prop::collection::vec("(#{1,4} [a-z]{1,5}|\\|[a-z]{1,6} \\|[0-9]{1,3}|    [a-z]{1,4}\\(\\);|[A-Z][a-z ]{1,40}\\.|)", 0..60),
        tokens in 4_usize..40,
        overlap in 0_usize..8,
    ) {
        let marked = lines.join("\n");
        let (text, elements) = parse(&marked);
        let cuts = split(&text, &elements, Budget { tokens, overlap: overlap.min(tokens / 2) }, &words);
        for Cut { at, text: passage } in &cuts {
            let head: String = text[*at..].split_whitespace().take(1).collect();
            prop_assert!(passage.contains(&head), "{head} begins {passage}");
        }
        let passages: Vec<String> = cuts.into_iter().map(|cut| cut.text.into_owned()).collect();
        let all = passages.join("\n");
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            // Long lines may be cut, their words not.
            prop_assert!(line.split(|c: char| !c.is_alphanumeric()).all(|word| all.contains(word)), "{line} is missing");
        }
        for passage in &passages {
            prop_assert!(!passage.trim().is_empty());
            prop_assert!(words(passage) <= tokens, "{} > {tokens}: {passage}", words(passage));
        }
    }
}
