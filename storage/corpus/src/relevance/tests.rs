use proptest::prelude::*;

use super::*;

fn unrelated() -> Unrelated {
    let means = [(Language::English, 0.1), (Language::German, 0.3), (Language::Chinese, 0.7)];
    Unrelated { mean: 0.1, deviation: 0.08, means: means.into_iter().collect() }
}

fn judged(question: &str, passages: &[(Option<f32>, &str)]) -> Option<bool> {
    let candidate =
        |(similarity, content): &(Option<f32>, &str)| Candidate { similarity: *similarity, content: (*content).into() };
    is_any_relevant(question, Some(&unrelated()), &passages.iter().map(candidate).collect::<Vec<_>>())
}

#[test]
fn similarity_and_words_make_up_for_each_other() {
    let question = "Who pays for the roof of the mill?";
    assert_eq!(judged(question, &[(Some(0.45), "Poppies are watered at night.")]), Some(true), "similar enough");
    assert_eq!(judged(question, &[(Some(0.25), "Poppies are watered at night.")]), Some(false));
    assert_eq!(judged(question, &[(Some(0.25), "Mara pays for the mill's new roof.")]), Some(true), "and its words");
    assert_eq!(judged(question, &[(None, "Mara pays for the mill's new roof.")]), Some(true), "without a vector");
    assert_eq!(judged(question, &[(Some(-0.2), "roof")]), Some(false));
    assert_eq!(judged(question, &[]), Some(false));
    assert_eq!(is_any_relevant(question, None, &[]), None, "nothing is known of the model");
}

#[test]
fn of_a_language_that_the_model_does_not_read_words_judge() {
    let laundry = "洗衣机可以使用到晚上九点。洗衣代币由管理员出售。";
    assert_eq!(judged("洗衣机几点关", &[(Some(0.2), laundry)]), Some(true));
    assert_eq!(judged("月球离地球有多远", &[(Some(0.95), laundry)]), Some(false), "all is alike to it");
    assert_eq!(judged("Ποιος πληρώνει;", &[(Some(0.95), laundry)]), None, "nothing is known of it");
}

#[test]
fn of_passages_in_another_language_nothing_is_said_unless_the_model_reads_both_as_well() {
    let german = "Der Garten hinter der Mühle ist voll Mohn, und der Müller gießt ihn.";
    let question = "What grows behind the mill?";
    assert_eq!(judged(question, &[(Some(0.1), german)]), None);
    assert_eq!(judged(question, &[(Some(0.1), german), (Some(0.0), "The boats are in the harbour.")]), Some(false));
    assert_eq!(judged("Wann ist das Fest?", &[(Some(0.1), "The boats are in the harbour.")]), None);
    assert_eq!(judged(question, &[(Some(0.6), german)]), Some(true), "similar all the same");
    assert_eq!(judged("月球离地球有多远", &[(Some(0.1), german)]), None);
    let both = Unrelated { means: [(Language::English, 0.1), (Language::German, 0.2)].into(), ..unrelated() };
    let passage = [Candidate { similarity: Some(0.1), content: german.into() }];
    assert_eq!(is_any_relevant(question, Some(&both), &passage), Some(false));
}

#[test]
fn a_question_of_no_topic_is_not_judged() {
    assert_eq!(judged("What is it?", &[(Some(0.5), "x")]), None);
    assert_eq!(judged("Hello!", &[(Some(0.1), "x")]), None);
    assert_eq!(judged("?!", &[(Some(0.1), "x")]), None);
}

#[test]
fn similarity_is_a_number_or_nothing() {
    assert_eq!(cosine(&[1.0, 0.0], &[1.0, 0.0]), Some(1.0));
    assert_eq!(cosine(&[1.0, 0.0], &[-2.0, 0.0]), Some(-1.0));
    assert_eq!(cosine(&[0.0, 0.0], &[1.0, 0.0]), None);
    assert_eq!(cosine(&[f32::NAN, 0.0], &[1.0, 0.0]), None);
    assert_eq!(cosine(&[], &[]), None);
}

#[test]
fn what_gives_the_same_to_all_tells_nothing() {
    let all = |vector: &dyn Fn(usize) -> Vec<f32>| {
        let vectors: Vec<Vec<f32>> = (0..8).map(vector).collect();
        Unrelated::of(&BTreeMap::from([(Language::English, vectors)]))
    };
    assert_eq!(all(&|_| vec![1.0, 1.0]), None);
    assert_eq!(all(&|_| vec![0.0, 0.0]), None);
    assert_eq!(all(&|_| vec![f32::NAN, 0.0]), None);
    let apart = all(&|at| vec![(at as f32).cos(), (at as f32).sin()]).unwrap();
    assert!(apart.mean < 0.3 && apart.deviation > 0.3, "{apart:?}");
    assert_eq!(Unrelated::of(&BTreeMap::new()), None);
}

#[test]
fn the_questions_are_of_all_languages_and_in_them() {
    let questions = questions();
    assert_eq!(questions.len(), Language::ALL.len());
    for (language, questions) in &questions {
        assert_eq!(questions.len(), 40, "{language:?}");
        let told = questions.iter().filter(|question| Language::of(question) == Some(*language)).count();
        assert!(told >= 38, "{language:?}: {told}");
    }
    assert!(serde_json::from_str::<BTreeMap<String, Unrelated>>(MEASURED).is_ok());
}

proptest! {
    #[test]
    fn any_text_is_judged(question in any::<String>(), passage in any::<String>(), similarity in any::<f32>()) {
        let candidate = Candidate { similarity: Some(similarity), content: passage.clone() };
        let judged = is_any_relevant(&question, Some(&unrelated()), &[candidate]);
        if similarity.is_nan() {
            prop_assert!(judged != Some(true) || unrelated().judges(&question) != By::Similarity);
        }
    }

    /// What is relevant stays so if it is more similar.
    #[test]
    fn more_similarity_never_makes_less_of_a_passage(question in "[a-z ]{0,40}", passage in "[a-z ]{0,40}", a in -1f32..1.0, b in -1f32..1.0) {
        let with = |similarity| judged(&question, &[(Some(similarity), &passage)]);
        prop_assert!(with(a.min(b)) <= with(a.max(b)));
    }
}
