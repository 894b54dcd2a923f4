//! That nothing was found, in the language of the question where that is known, else in English.

use ragstone_corpus::Language;

/// What is said where no model is asked.
pub(crate) fn refusal(question: &str) -> &'static str {
    match Language::of(question) {
        Some(Language::German) => "Dazu steht nichts in den Dokumenten.",
        Some(Language::French) => "Les documents ne disent rien à ce sujet.",
        Some(Language::Spanish) => "Los documentos no dicen nada sobre esto.",
        Some(Language::Russian) => "В документах об этом ничего нет.",
        Some(Language::Chinese) => "文档中没有关于这个问题的内容。",
        Some(Language::Japanese) => "文書にはこのことについて何も書かれていません。",
        Some(Language::Korean) => "문서에는 이에 관한 내용이 없습니다.",
        Some(Language::Arabic) => "لا يوجد في المستندات شيء عن هذا.",
        Some(Language::Thai) => "ในเอกสารไม่มีข้อมูลเกี่ยวกับเรื่องนี้",
        Some(Language::English) | None => "The documents do not say anything about this.",
    }
}

/// What stands before an answer of the model's own.
pub(crate) fn note(question: &str) -> &'static str {
    match Language::of(question) {
        Some(Language::German) => "(Dazu steht nichts in den Dokumenten; die Antwort kommt vom Modell allein.)",
        Some(Language::French) => "(Les documents ne disent rien à ce sujet ; la réponse vient du modèle seul.)",
        Some(Language::Spanish) => "(Los documentos no dicen nada sobre esto; la respuesta es solo del modelo.)",
        Some(Language::Russian) => "(В документах об этом ничего нет; это ответ самой модели.)",
        Some(Language::Chinese) => "（文档中没有关于这个问题的内容；以下仅为模型自己的回答。）",
        Some(Language::Japanese) => "（文書にはこのことについて何も書かれていません。以下はモデルだけの回答です。）",
        Some(Language::Korean) => "(문서에는 이에 관한 내용이 없습니다. 다음은 모델의 답변일 뿐입니다.)",
        Some(Language::Arabic) => "(لا يوجد في المستندات شيء عن هذا، وهذه إجابة النموذج وحده.)",
        Some(Language::Thai) => "(ในเอกสารไม่มีข้อมูลเกี่ยวกับเรื่องนี้ คำตอบต่อไปนี้มาจากแบบจำลองเอง)",
        Some(Language::English) | None => {
            "(The documents do not say anything about this; the answer is the model's own.)"
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn it_is_said_in_the_questions_language() {
        let questions = [
            "How far is the moon?",
            "Wie weit ist der Mond?",
            "Quelle est la distance de la Lune ?",
            "¿A qué distancia está la Luna?",
            "Как далеко Луна?",
            "月球有多远？",
            "月はどのくらい離れていますか？",
            "달은 얼마나 멉니까?",
            "كم يبعد القمر؟",
            "ดวงจันทร์อยู่ไกลเท่าไร",
        ];
        for say in [refusal, note] {
            let said: HashSet<&str> = questions.iter().map(|question| say(question)).collect();
            assert_eq!(said.len(), Language::ALL.len());
            for question in questions {
                assert_eq!(Language::of(say(question)), Language::of(question), "{question}");
            }
            assert_eq!(say("Πόσο μακριά;"), say("How far is the moon?"));
        }
    }
}
