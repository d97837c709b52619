// Beginnings and passages of Carroll's Alice (1865), Austen's Pride and Prejudice (1813),
// Melville's Moby-Dick (1851), Darwin's Origin of Species (1859), Thoreau's Walden (1854), the
// Declaration of Independence (1776), Lincoln at Gettysburg (1863), Shakespeare's sonnets 18 and 29
// (1609) and Blake's Tyger (1794), all in the public domain; the rest, from the letter on, was
// written for this file and is given to it as well.

#include "converter/calibration.h"

namespace volvelle {

std::string_view calibration_text() {
  static constexpr std::string_view kText =
      R"(Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: once or twice she had peeped into the book her sister was reading, but it had no pictures or conversations in it, "and what is the use of a book," thought Alice "without pictures or conversations?"

So she was considering in her own mind (as well as she could, for the hot day made her feel very sleepy and stupid), whether the pleasure of making a daisy-chain would be worth the trouble of getting up and picking the daisies, when suddenly a White Rabbit with pink eyes ran close by her.

There was nothing so very remarkable in that; nor did Alice think it so very much out of the way to hear the Rabbit say to itself, "Oh dear! Oh dear! I shall be late!" (when she thought it over afterwards, it occurred to her that she ought to have wondered at this, but at the time it all seemed quite natural); but when the Rabbit actually took a watch out of its waistcoat-pocket, and looked at it, and then hurried on, Alice started to her feet, for it flashed across her mind that she had never before seen a rabbit with either a waistcoat-pocket, or a watch to take out of it, and burning with curiosity, she ran across the field after it, and fortunately was just in time to see it pop down a large rabbit-hole under the hedge.

It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife. However little known the feelings or views of such a man may be on his first entering a neighbourhood, this truth is so well fixed in the minds of the surrounding families, that he is considered as the rightful property of some one or other of their daughters.

"My dear Mr. Bennet," said his lady to him one day, "have you heard that Netherfield Park is let at last?"

Mr. Bennet replied that he had not.

"But it is," returned she; "for Mrs. Long has just been here, and she told me all about it."

Mr. Bennet made no answer.

"Do not you want to know who has taken it?" cried his wife impatiently.

"You want to tell me, and I have no objection to hearing it."

This was invitation enough.

When on board H.M.S. Beagle, as naturalist, I was much struck with certain facts in the distribution of the inhabitants of South America, and in the geological relations of the present to the past inhabitants of that continent. These facts seemed to me to throw some light on the origin of species - that mystery of mysteries, as it has been called by one of our greatest philosophers. On my return home, it occurred to me, in 1837, that something might perhaps be made out on this question by patiently accumulating and reflecting on all sorts of facts which could possibly have any bearing on it.

I went to the woods because I wished to live deliberately, to front only the essential facts of life, and see if I could not learn what it had to teach, and not, when I came to die, discover that I had not lived. I did not wish to live what was not life, living is so dear; nor did I wish to practise resignation, unless it was quite necessary.

When in the Course of human events, it becomes necessary for one people to dissolve the political bands which have connected them with another, and to assume among the powers of the earth, the separate and equal station to which the Laws of Nature and of Nature's God entitle them, a decent respect to the opinions of mankind requires that they should declare the causes which impel them to the separation. We hold these truths to be self-evident, that all men are created equal, that they are endowed by their Creator with certain unalienable Rights, that among these are Life, Liberty and the pursuit of Happiness. That to secure these rights, Governments are instituted among Men, deriving their just powers from the consent of the governed.

Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in Liberty, and dedicated to the proposition that all men are created equal. Now we are engaged in a great civil war, testing whether that nation, or any nation so conceived and so dedicated, can long endure. We are met on a great battle-field of that war. We have come to dedicate a portion of that field, as a final resting place for those who here gave their lives that that nation might live. It is altogether fitting and proper that we should do this. But, in a larger sense, we can not dedicate - we can not consecrate - we can not hallow - this ground.

Shall I compare thee to a summer's day?
Thou art more lovely and more temperate:
Rough winds do shake the darling buds of May,
And summer's lease hath all too short a date;
Sometime too hot the eye of heaven shines,
And often is his gold complexion dimm'd;
And every fair from fair sometime declines,
By chance or nature's changing course untrimm'd;
But thy eternal summer shall not fade,
Nor lose possession of that fair thou ow'st;
Nor shall death brag thou wander'st in his shade,
When in eternal lines to time thou grow'st:
So long as men can breathe or eyes can see,
So long lives this, and this gives life to thee.

When, in disgrace with fortune and men's eyes,
I all alone beweep my outcast state,
And trouble deaf heaven with my bootless cries,
And look upon myself and curse my fate.

Tyger Tyger, burning bright,
In the forests of the night;
What immortal hand or eye,
Could frame thy fearful symmetry?

Dear Miriam,

Thank you for the parcel, which came on Thursday, a day earlier than the post office had promised. The jars arrived whole. We opened the plum jam at breakfast and it is already half gone, so you may take that as our verdict. The children ask when you will visit; I told them that the trains are full until the middle of March, but they do not believe that a train can be full. Father is better. He walks to the bridge and back every morning, whatever the weather, and complains about the same dog every evening. Please write and say whether you still want the old sewing machine. If you do, Paul can bring it in the van when he drives down on the 14th.

With love from all of us,
Anna

The town council met on Tuesday evening to discuss the future of the market hall, which has stood empty since the roof was damaged two winters ago. Repairs would cost an estimated $2.4 million, according to a report by the city's engineers; demolition and a new building would cost nearly three times as much. "Nobody wants to lose it," said the mayor, "but somebody has to pay for it." About sixty residents attended, and most of those who spoke were in favour of repairing the hall. A decision is expected in June.

Water boils at 100 degrees Celsius at sea level, and at lower temperatures higher up, because the pressure of the air is less. On a mountain of 3,000 metres it boils at about 90 degrees. That is why beans take so long to cook there: the water around them cannot become hotter, however strong the flame. A pressure cooker does the opposite. Its lid keeps the steam inside, the pressure rises, and water boils only at 120 degrees or so.

The cell is the smallest unit of life. Plants, animals and fungi consist of cells with a nucleus, in which most of the genetic material is kept; bacteria have none. Energy is made available in the mitochondria, which have a small genome of their own, inherited from the mother alone. In 1838 Matthias Schleiden suggested that all parts of plants are made of cells; a year later Theodor Schwann said the same of animals.

How to change a bicycle tube:
1. Open the brake, loosen the nuts or the quick release, and take the wheel out.
2. Let out what air is left. Push one side of the tyre off the rim with two levers, starting opposite the valve.
3. Pull out the old tube. Feel along the inside of the tyre for glass or thorns before you put in the new one.
4. Pump a little air into the new tube, so that it holds its shape, put the valve through its hole and tuck the tube in.
5. Press the tyre back over the rim with your thumbs, finishing at the valve. Pump it up and check that it runs true.

Ingredients: 250 g flour, 1 teaspoon salt, 2 eggs, 300 ml milk, 50 g butter. Mix the flour and the salt in a bowl, make a hollow in the middle and break the eggs into it. Stir, adding the milk little by little, until the batter is smooth. Let it rest for half an hour. Melt some butter in a pan, pour in a ladle of batter and turn the pan until it covers the bottom thinly. After about a minute, when the edges come loose, turn it over.

User: What is the difference between weather and climate?
Assistant: Weather is what the air does at a particular place over hours or days: rain this afternoon, frost tonight. Climate is what the weather does on average over a long time, usually thirty years or more. A cold week in April tells you about the weather; whether such weeks have become rarer than they were fifty years ago is a question about the climate.

User: Can you give me three names for a small black cat?
Assistant: Of course! Here are three: Pepper, Inky, and Mocha.

User: A shop sells pencils at 35 cents each or 12 for $3.60. How much do I save on a dozen?
Assistant: Twelve single pencils cost 12 x $0.35 = $4.20. The dozen costs $3.60, so you save $4.20 - $3.60 = $0.60, or 5 cents a pencil.

User: Summarize the following paragraph in one sentence. "Honey bees communicate the direction and distance of flowers by a dance. On the vertical comb, the angle between the bee's run and straight up equals the angle between the flowers and the sun. The longer the run lasts, the farther away the flowers are."
Assistant: A honey bee's dance tells other bees where flowers are: its angle shows the direction relative to the sun, and its duration the distance.

def median(values):
    """Return the middle value of a non-empty list."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2 == 1:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2

for name, scores in {"Ada": [3, 9, 4], "Ben": [7, 7]}.items():
    print(f"{name}: {median(scores):.1f}")

#include <stdio.h>

int main(void) {
  int total = 0;
  for (int i = 1; i <= 10; ++i) {
    if (i % 2 == 0) total += i * i;
  }
  printf("%d\n", total);  /* 220 */
  return 0;
}

SELECT customer, COUNT(*) AS orders, SUM(amount) FROM sales WHERE year = 2021 GROUP BY customer ORDER BY 3 DESC LIMIT 5;

{"name": "lamp", "price": 24.99, "tags": ["home", "light"], "in_stock": true}

| planet | moons | day (hours) |
|--------|-------|-------------|
| Earth  | 1     | 24          |
| Mars   | 2     | 24.6        |
| Venus  | 0     | 2802        |

Let a, b and c be the sides of a right triangle, c being the longest. Then a^2 + b^2 = c^2. To see this, draw a square of side a + b and place four copies of the triangle in its corners so that a tilted square of side c remains in the middle. The large square has the area (a + b)^2 = a^2 + 2ab + b^2, the four triangles together 2ab, and so the small square c^2 = a^2 + b^2.

)";
  return kText;
}

std::string_view report_text() {
  static constexpr std::string_view kText =
      R"(Call me Ishmael. Some years ago - never mind how long precisely - having little or no money in my purse, and nothing particular to interest me on shore, I thought I would sail about a little and see the watery part of the world. It is a way I have of driving off the spleen, and regulating the circulation. Whenever I find myself growing grim about the mouth; whenever it is a damp, drizzly November in my soul; whenever I find myself involuntarily pausing before coffin warehouses, and bringing up the rear of every funeral I meet; and especially whenever my hypos get such an upper hand of me, that it requires a strong moral principle to prevent me from deliberately stepping into the street, and methodically knocking people's hats off - then, I account it high time to get to sea as soon as I can.

The defendant argued that the contract had been concluded under a mistake, since both parties believed the painting to be an original. The court did not agree. A buyer who is told that the seller "cannot guarantee" authorship, it held, takes the risk upon himself. The appeal was dismissed with costs.

In the second half the visitors pressed harder, and after 71 minutes they had their reward: a corner from the left, a header against the post, and Okafor was there to put the rebound over the line. 2-1. The home side threw everybody forward in stoppage time, but the goalkeeper, who had hardly been tested before, held on to all that came.

"Where were you?" she asked, without looking up from the table.

"Out," he said. "By the river. The ice is breaking."

"It does that every year."

"I know. I like to hear it." He hung his coat on the nail behind the door and sat down opposite her. For a while neither of them spoke. The clock ticked; the kettle began to murmur. Then she pushed the letter across to him, and he saw that it had been opened, read, and folded again along the same lines.

The old lighthouse keeper had three rules. Never let the lamp go out. Never trust a calm sea. And never, whatever the storm, leave a boat unanswered. On the night of the great gale he kept all three, and in the morning there were eleven strangers asleep on his kitchen floor.

Paris is the capital of France, and the Seine flows through it. Berlin is the capital of Germany; its largest river is the Havel. Rome, on the Tiber, is the capital of Italy. Madrid, the capital of Spain, lies on the Manzanares, which is hardly a river at all. Tokyo has about 14 million inhabitants, Lagos about as many, and Iceland fewer than 400,000.

Photosynthesis turns carbon dioxide and water into sugar and oxygen with the energy of light: 6 CO2 + 6 H2O -> C6H12O6 + 6 O2. The green of leaves is chlorophyll, which absorbs red and blue light. In autumn it is broken down first, and the yellow that was there all summer becomes visible.

Das Wetter war schlecht, aber wir gingen trotzdem spazieren. Le petit chat dort sur la chaise pendant que la pluie tombe. Mañana por la mañana iremos al mercado a comprar pan, queso y naranjas.
)";
  return kText;
}

}  // namespace volvelle
