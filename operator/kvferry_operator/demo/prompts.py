"""What the demo asks: short questions, a few paragraphs, and two long texts of more than a thousand tokens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prompt:
    """title: for the table."""

    title: str
    text: str


FERRY = """\
The river town of Ansel Crossing has no bridge. It has had plans for one since the year the railway came, and the \
plans hang in the council room, one above the other, each drawn by a more expensive hand than the last. The oldest \
shows stone arches, the next an iron lattice, and the newest a white pylon with cables like the strings of a harp. \
Under the plans stands the table at which the council meets on the first Monday of every month, and at that table, \
month after month, the council votes to keep the ferry for one more year.

Strangers find this hard to understand. The river is four hundred metres wide at the landing, the current is strong \
in spring, and in a hard winter the ice closes the crossing for a week or two. A bridge would carry a car across in \
half a minute. The ferry needs eleven minutes, and it goes only when the ferryman thinks that it is full enough, or \
when somebody on the other bank has rung the bell three times. Yet people who have lived in the town for long will \
tell you that the ferry is not slow. They will tell you that it is only a matter of how you use the time.

The baker, for example, crosses every morning at half past five with four hundred rolls in baskets of woven willow. \
She could bake on the other side, where most of her customers live, and where the rent is lower. But the oven is on \
this side, and it was her grandfather's. So she loads the first baskets while the last rolls are still in the oven, \
and a boy brings those at a run, and the ferryman holds the boat for him. By the time the boat has reached the middle \
of the river she has sorted the rolls into bags and written a name on every bag. When the ramp goes down on the other \
bank, her work is finished, and the customers who stand there have nothing to do but to take what is theirs.

A young engineer who came to count the traffic wrote this down with some surprise. He had expected that the crossing \
would be lost time, a hole in the day of everybody who needed it. Instead he found that almost nobody waited. The \
schoolchildren learned their poems on the boat. The doctor read the letters that had come from the hospital. Two \
brothers who sold fish had divided their work in such a way that one of them cleaned the catch during the crossing, \
so that the other could sell it as soon as they landed. The engineer made a table with two columns. In the first he \
put the minutes that people spent on the boat. In the second he put those minutes in which they did nothing that they \
would not have had to do in any case. The second column was almost empty. He called it the hidden crossing, and he \
was so pleased with the name that he used it as the title of his report.

The report did not recommend a bridge. It recommended a second ferry, because on market days the queue reached back \
as far as the church, and a person who stands in a queue, the engineer wrote, can neither clean fish nor sort bread. \
He also recommended smaller baskets. It seemed a strange thing for an engineer to care about, but he had watched the \
loading for a week, and he had seen that a big basket could not be brought on board until the last roll was in it, \
while a small one could go as soon as it was full. With small baskets the loading began earlier and ended earlier. \
With very small ones, however, the boy ran so often that he was tired by six o'clock, and the ferryman lost count. \
There was a best size somewhere in between, and the engineer found it in the usual way, by trying three sizes that \
were wrong.

The ferryman read the report in the evening, by the lamp in the wheelhouse, and he agreed with nearly all of it. He \
had only one objection, and he wrote it in pencil on the last page. The report, he said, counts what goes across, and \
how fast, and how well the time is used. It does not count what arrives. In forty years he had carried pianos, bees, \
a judge, three weddings and the whole library of the monastery on the hill, and all of them had arrived, because he \
had looked over his shoulder on every crossing and had counted them again before he let the ramp down. Twice he had \
been one short. The first time it was a goat, which had gone back to the bank that it knew. The second time it was a \
box of letters, and he had turned the boat around in the middle of the river and fetched it, although the people on \
board complained. A crossing at which something is missing, he wrote, is not a fast crossing. It is not a crossing \
at all.

The council printed the report with the ferryman's remark at the end, and it bought the second ferry in the spring. \
The baker chose smaller baskets. The plan with the white pylon was hung in the council room below the others, where \
it looks very fine, and where it will have company one day, because a firm in the capital has already offered to \
draw the next one. On the first Monday of the month, when the vote has been taken, the members of the council walk \
down to the landing together. They ring the bell three times, although the boat is there and the ferryman can see \
them perfectly well. Then they cross, eleven minutes in each direction, and it is said that the real decisions of the \
town are made on the way back.

Question: Why did the engineer recommend smaller baskets, and what did the ferryman add to the report?
Answer: The engineer had seen that"""

LIGHTHOUSE = """\
When the lighthouse on Gull Point was given its first electric lamp, the keeper was asked to write down how the old \
light had been kept, so that the knowledge would not be lost. He was a man who liked to be exact, and he began with \
the oil. The oil came four times a year in barrels, and it had to be strained through linen before it was carried up, \
because a single grain of sand could block the wick for a night. There were two hundred and eleven steps. A full can \
weighed as much as a child of six, and on a winter night the lamp burned three cans. The keeper therefore carried the \
oil up in the afternoon, one can after the other, and rested on the landing with the window that looks south, where \
there was a chair. He wrote that the chair should be left where it was.

After the oil he described the clockwork. The lens did not float on mercury in those days, as it does in the great \
lights of the coast. It stood on twelve brass rollers and was turned by a weight that sank down through the middle of \
the tower on a chain. When the weight had reached the bottom it had to be wound up again, and this took four minutes, \
and during these four minutes the lens had to go on turning, for a light that stops is worse than a light that is \
out. A captain who sees no light knows that he must be careful. A captain who sees a light that stands still believes \
that he is looking at another lighthouse, and he steers by it with confidence until he is on the rocks. So there was \
a second, smaller weight that took over while the first was wound. The keeper underlined this. He said that whoever \
builds a machine on which others rely should think first of what it does while it is being wound.

Then came the rules for the watch. There were three keepers, and each of them watched for four hours. At the end of a \
watch the keeper who went and the keeper who came looked at the lamp together, and both of them wrote in the book: \
the hour, the height of the flame, the number of turns in five minutes, the wind, and the ships. They did not copy \
from each other. If the two lines were the same, the watch was handed over. If they differed, both of them went back \
and looked again. In thirty years, the keeper wrote, it had happened some forty times that the lines differed, and \
most of the time it had been a slip of the pen. But on one night the number of turns had been different by one, and \
when they measured again they found that a roller had begun to stick. By the morning it would have stopped the lens. \
The inspector, who came once a year, thought the double entry a waste of ink. He was shown the page with that night, \
and he did not speak of ink again.

The longest part of the keeper's account was about fog. In fog the light could not be seen from further away than a \
strong man can throw a stone, and the bell was rung instead, two strokes and a pause, by hand, for as long as the fog \
lasted. Once it lasted for fifty hours. The three keepers rang in turns of thirty minutes, and slept in between on \
the floor of the bell house, and the oldest of them invented a way to pass the rope from hand to hand without losing \
a stroke. The one who came took the rope above the hands of the one who went, pulled the first stroke together with \
him, and pulled the second alone. From the sea nobody could have told that there were two of them. The keeper was \
prouder of this than of anything else in the account. He wrote that it had taken them a whole night to learn, that \
they had made every mistake that can be made, and that in the end the secret was simple: the one who goes may not let \
go before the one who comes has pulled.

At the end he turned to the new lamp. He had nothing against it. It was brighter than the old one, it did not smell, \
and it asked for no oil. It was lit by a switch at the foot of the tower, so that nobody would have to climb the two \
hundred and eleven steps in the afternoon. He had only three questions for the engineers. The first was how the light \
would be kept turning when the current failed. The second was who would look at the lamp together with the keeper at \
the end of the watch, now that one man was to do the work of three. The third was whether anybody had thought of the \
birds. In the nights of autumn they came to the old light in hundreds and sat on the gallery, because the warm air \
rose from the chimney of the lamp, and in the morning they flew on. The new lamp had no chimney. He supposed that the \
birds would find another place, he wrote, but he would have liked to know which one.

The engineers answered the first question with a battery, and the second with a telephone. To the third they sent no \
answer. But the following year, when the tower was painted, the men who hung in their ropes below the gallery found \
a narrow shelf of wood that was on none of the drawings. It ran around the whole tower on the side away from the wind. \
A heating wire was laid along it, neatly clamped, and the wire was joined to the circuit of the lamp with a fuse of \
its own. Nobody ever learned which of the engineers had built it. The keeper entered it in the book, with the hour, \
the wind, and the number of birds.

Question: What did the keepers do at the end of every watch, and why?
Answer: At the end of every watch"""

PROMPTS = (
    Prompt("capital", "The capital of France is"),
    Prompt("recipe", "Here is a simple recipe for a soup of lentils and carrots that takes half an hour:\n1."),
    Prompt(
        "letter",
        "Dear Ms. Novak,\n\nthank you for your letter about the broken window in the reading room of the library. We "
        "have asked a glazier to look at it, and he will come on Thursday morning. Until then we have",
    ),
    Prompt(
        "tides",
        "Explain to a child why the sea rises and falls twice a day. Use short sentences and no numbers.\n\n"
        "The sea is pulled by the moon. When the moon is above the water,",
    ),
    Prompt(
        "code",
        "def running_mean(values, width):\n"
        '    """The mean of each `width` neighbouring values.\n\n'
        "    The result has len(values) - width + 1 entries. A width of 1 gives the values themselves.\n"
        '    """\n'
        "    if width < 1:\n"
        '        raise ValueError("width must be at least 1")\n'
        "    total = sum(values[:width])\n"
        "    means = [total / width]\n"
        "    for index in range(width, len(values)):\n",
    ),
    Prompt("harbour", FERRY.split("\n\n")[0] + "\n\nIn one sentence:"),
    Prompt("ferry", FERRY),
    Prompt("lighthouse", LIGHTHOUSE),
)
