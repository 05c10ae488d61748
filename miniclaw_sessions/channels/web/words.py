"""The words of the chat's buttons, in the languages of those who read them."""

from __future__ import annotations

from collections.abc import Mapping

_NAMES = (
    *("close", "send", "write", "attach", "remove", "record", "recorded", "stop", "earlier", "lost", "typing"),
    *("asks", "allow", "refuse", "waits", "size", "kind", "microphone", "title"),
)
_WORDS = {
    "en": (
        *("Close", "Send", "Write a message", "Attach a file", "Remove", "Record a voice message", "End the recording"),
        *("Stop the answer", "Show earlier messages", "Connecting again …", "An answer is being written"),
        *("May this be done?", "Allow", "Refuse", "Waits to be sent", "This is too large."),
        *("This kind of file is not taken here.", "The microphone cannot be used.", "Chat"),
    ),
    "de": (
        *("Schließen", "Senden", "Nachricht schreiben", "Datei anhängen", "Entfernen", "Sprachnachricht aufnehmen"),
        *("Aufnahme beenden", "Antwort anhalten", "Frühere Nachrichten zeigen", "Verbindung wird wiederhergestellt …"),
        *("Eine Antwort wird geschrieben", "Darf das geschehen?", "Erlauben", "Ablehnen", "Wartet auf das Senden"),
        *("Das ist zu groß.", "Diese Art von Datei wird hier nicht angenommen.", "Das Mikrofon ist nicht verfügbar."),
        "Chat",
    ),
    "fr": (
        *("Fermer", "Envoyer", "Écrire un message", "Joindre un fichier", "Retirer", "Enregistrer un message vocal"),
        *("Terminer l'enregistrement", "Arrêter la réponse", "Afficher les messages précédents", "Reconnexion …"),
        *("Une réponse est en cours d'écriture", "Est-ce permis ?", "Autoriser", "Refuser", "En attente d'envoi"),
        *("C'est trop volumineux.", "Ce type de fichier n'est pas accepté ici.", "Le microphone est indisponible."),
        "Discussion",
    ),
    "es": (
        *("Cerrar", "Enviar", "Escribe un mensaje", "Adjuntar un archivo", "Quitar", "Grabar un mensaje de voz"),
        *("Terminar la grabación", "Detener la respuesta", "Mostrar mensajes anteriores", "Reconectando …"),
        *("Se está escribiendo una respuesta", "¿Se puede hacer esto?", "Permitir", "Rechazar", "Pendiente de envío"),
        *("Es demasiado grande.", "Este tipo de archivo no se acepta aquí.", "No se puede usar el micrófono.", "Chat"),
    ),
    "it": (
        *("Chiudi", "Invia", "Scrivi un messaggio", "Allega un file", "Rimuovi", "Registra un messaggio vocale"),
        *("Termina la registrazione", "Ferma la risposta", "Mostra i messaggi precedenti", "Riconnessione …"),
        *("Una risposta è in arrivo", "Si può fare?", "Consenti", "Rifiuta", "In attesa di invio"),
        *("È troppo grande.", "Questo tipo di file non è accettato.", "Il microfono non è disponibile.", "Chat"),
    ),
    "pt": (
        *("Fechar", "Enviar", "Escreva uma mensagem", "Anexar um arquivo", "Remover", "Gravar uma mensagem de voz"),
        *("Terminar a gravação", "Parar a resposta", "Mostrar mensagens anteriores", "Reconectando …"),
        *("Uma resposta está sendo escrita", "Isto pode ser feito?", "Permitir", "Recusar", "Aguardando envio"),
        *("É grande demais.", "Este tipo de arquivo não é aceito aqui.", "O microfone não está disponível.", "Chat"),
    ),
    "nl": (
        *("Sluiten", "Versturen", "Schrijf een bericht", "Bestand toevoegen", "Verwijderen", "Spraakbericht opnemen"),
        *("Opname beëindigen", "Antwoord stoppen", "Eerdere berichten tonen", "Opnieuw verbinden …"),
        *("Er wordt een antwoord geschreven", "Mag dit gebeuren?", "Toestaan", "Weigeren", "Wacht op verzending"),
        *("Dit is te groot.", "Dit soort bestand wordt hier niet aangenomen.", "De microfoon is niet beschikbaar."),
        "Chat",
    ),
    "ar": (
        *("إغلاق", "إرسال", "اكتب رسالة", "إرفاق ملف", "إزالة", "تسجيل رسالة صوتية", "إنهاء التسجيل"),
        *("إيقاف الإجابة", "عرض الرسائل السابقة", "جارٍ إعادة الاتصال …", "تُكتب الإجابة الآن", "هل يُسمح بهذا؟"),
        *("سماح", "رفض", "في انتظار الإرسال", "الحجم كبير جدًا.", "هذا النوع من الملفات غير مقبول هنا."),
        *("لا يمكن استخدام الميكروفون.", "محادثة"),
    ),
    "he": (
        *("סגירה", "שליחה", "כתיבת הודעה", "צירוף קובץ", "הסרה", "הקלטת הודעה קולית", "סיום ההקלטה"),
        *("עצירת התשובה", "הצגת הודעות קודמות", "מתחבר מחדש …", "נכתבת תשובה", "האם לעשות זאת?", "אישור", "סירוב"),
        *("ממתין לשליחה", "זה גדול מדי.", "סוג קובץ זה אינו מתקבל כאן.", "אי אפשר להשתמש במיקרופון.", "צ'אט"),
    ),
}


def words_in(language: str) -> Mapping[str, str]:
    """The words in a language, by its tag, such as `de-CH`; in English where it is not among these."""
    words = _WORDS.get(language.lower().replace("_", "-").partition("-")[0], _WORDS["en"])
    return dict(zip(_NAMES, words, strict=True))
