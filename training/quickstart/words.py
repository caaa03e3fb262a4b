"""The words of the `quickstart` world, by topic.

The first line of a topic contains its places. Every other line is: agents > action ~ opposite action > patients >
qualities. Synonyms are separated by "/". SYNONYMS contains further synonyms of nouns, traits and qualities.
"""

from __future__ import annotations


def items(text: str, separator: str = ",") -> list[str]:
    return [item.strip() for line in text.strip().splitlines() for item in line.split(separator) if item.strip()]


TOPICS = {
    "kitchen": """
in the kitchen, at the restaurant/at the bistro, in the canteen/in the cafeteria, on the terrace, at the hotel
chef, grandmother, boy, woman > chop/slice/cut up > carrots, onions, mushrooms, tomatoes > fresh, large
chef, waiter, woman, man > heat/warm up ~ cool/chill > soup, milk, sauce, stew > thick, creamy
waiter, chef, girl, man > serve/bring out ~ refuse/turn down > dessert, soup, coffee, dinner > delicious, simple
guest, critic, boy, girl > taste/sample/try > cheese, wine, cake, sauce > delicious, expensive
waiter, boy, student, mother > wash/clean/rinse > plates, pots, glasses, cutlery > dirty, heavy
grandmother, chef, baker, mother > bake/make ~ burn/scorch > bread, biscuits, cake, pie > sweet, fresh
guest, critic, woman, man > praise/compliment ~ criticise/condemn > dinner, wine, pie, stew > simple, famous
""",
    "sport": """
in the stadium/at the arena, on the pitch/on the playing field, at the sports club, in the park, at the gym
striker, captain, player, boy > score ~ miss > penalty, free kick, goal > important, difficult
goalkeeper, captain, player, boy > throw/toss ~ catch/grab > ball, frisbee, bottle > wet, small
captain, team, champion, girl > win ~ lose > match, race, tournament, final > important, difficult
coach, captain, referee, fan > praise/compliment ~ scold/tell off > players, goalkeeper, team, runners > tired, young
referee, coach, team, captain > postpone/delay ~ start/commence > match, race, training, final > important, short
champion, runner, player, girl > lift/raise/hold up ~ drop > trophy, medal, flag, weights > golden, heavy
fan, boy, journalist, man > watch/follow ~ miss > match, race, final, tournament > exciting, difficult
runner, coach, player, student > buy/purchase ~ sell > shoes, jersey, racket, tickets > new, expensive
""",
    "music": """
in the concert hall, at the opera house, at the festival, in the studio, on the stage, in the church/in the chapel
singer, choir, girl, man > sing/perform > song, anthem, ballad, lullaby > sad, famous
pianist, violinist, guitarist, student > play/perform > tune, sonata, solo, duet > difficult, gentle
composer, singer, pianist, teacher > write/compose > song, tune, symphony, ballad > new, short
guitarist, drummer, violinist, technician > tune/adjust > guitar, violin, drums, piano > old, expensive
conductor, choir, pianist, singer > rehearse/practise > symphony, anthem, duet, concert > difficult, long
audience, critic, conductor, fan > applaud/cheer ~ boo/jeer > singer, choir, pianist, drummer > young, famous
technician, conductor, composer, critic > record/tape ~ delete/erase > album, concert, solo, song > new, loud
""",
    "weather": """
in the valley, on the coast/by the sea, in the mountains, in the village, near the border, on the island
storm, wind, hail, flood > damage/wreck > roof, houses, bridge, harbour > old, wooden
wind, storm, flood, landslide > knock over/topple > trees, fence, tower, signs > tall, old
rain, flood, landslide, storm > flood/swamp > streets, cellar, fields, tunnel > narrow, nearby
snow, fog, landslide, ice > block/close > road, pass, railway, airport > busy, remote
snow, fog, ice, rain > cover/blanket > hills, streets, fields, squares > quiet, empty
heat, frost, hail, drought > destroy/ruin ~ spare > crops, grapes, flowers, orchard > young, precious
storm, lightning, fog, wind > frighten/scare ~ spare > sailors, children, horses, tourists > young, tired
""",
    "farm": """
on the farm, in the barn/in the shed, in the field/on the meadow, near the river/by the stream, behind the farmhouse
farmer, shepherd, boy, girl > feed > cows, chickens, pigs, sheep > hungry, young
farmer, daughter, apprentice, woman > milk > cows, goats, sheep > brown, healthy
farmer, farmhand, son, apprentice > harvest/gather in ~ sow/plant > wheat, potatoes, corn, barley > golden, early
shepherd, farmer, son, man > lose ~ find/discover > sheep, lamb, calf, pony > young, brown
farmhand, apprentice, son, man > repair/mend/fix ~ damage/wreck > tractor, fence, plough, gate > old, wooden
farmer, woman, daughter, merchant > sell ~ buy/purchase > pigs, goats, horses, cows > young, cheap
girl, boy, farmhand, daughter > brush/groom > horse, pony, donkey, calf > brown, gentle
""",
    "traffic": """
on the motorway/on the highway, at the crossing/at the junction, in the tunnel, near the station, in the city centre
driver, tourist, man, woman > park ~ move > car, van, lorry, motorbike > red, expensive
driver, cyclist, tourist, courier > overtake/pass > bus, car, tram, lorry > slow, long
policeman, inspector, guard, soldier > stop/halt > driver, car, cyclist, van > fast, suspicious
policeman, inspector, driver, pedestrian > report/describe > accident, traffic jam, breakdown > terrible, strange
mechanic, driver, cyclist, man > repair/mend/fix ~ damage/wreck > motorbike, bicycle, engine, car > old, heavy
pedestrian, tourist, woman, student > miss ~ catch/board > bus, tram, train > last, slow
worker, policeman, mechanic, soldier > open ~ block/close > road, bridge, tunnel, lane > narrow, busy
""",
    "office": """
in the office, at headquarters/at the main office, in the meeting room, at the bank, at the factory/at the plant
manager, secretary, lawyer, clerk > write/draft > report, letter, contract, email > long, important
manager, director, lawyer, customer > sign ~ cancel/call off > contract, agreement, order, lease > important, new
director, manager, chairman, union > accept/approve ~ reject/turn down > plan, budget, offer > expensive, simple
manager, director, owner, company > hire/employ ~ dismiss/sack > engineer, secretary, workers, accountant > young, lazy
secretary, clerk, assistant, accountant > print/print out ~ delete/erase > report, invoice, list, letter > long, secret
technician, engineer, assistant, clerk > repair/mend/fix ~ break > printer, computer, telephone, lift > old, slow
secretary, director, accountant, chairman > postpone/delay ~ start/commence > meeting, interview > important, short
""",
    "school": """
in the classroom, at school, in the library, in the schoolyard/in the playground, at the university/at the college
teacher, professor, student, tutor > explain/clarify > rule, theory, poem, equation > difficult, simple
pupil, student, boy, girl > answer ~ ignore/disregard > questions, letter, teacher > difficult, strange
teacher, headmaster, professor, tutor > praise/compliment ~ scold/tell off > pupil, class, student > lazy, clever
pupil, girl, student, boy > read/study > book, poem, story, essay > short, exciting
student, professor, pupil, tutor > borrow ~ return/bring back > book, dictionary, laptop, map > expensive, old
teacher, professor, tutor, headmaster > correct/mark > essay, homework, exam, translation > long, short
pupil, student, girl, class > solve/work out > puzzle, equation, problem, riddle > difficult, famous
""",
    "travel": """
at the airport, on the beach, at the campsite, in the mountains, in the old town, at the harbour/at the port
tourist, couple, guide, family > visit/tour > museum, castle, cathedral, ruins > famous, old
tourist, couple, journalist, student > photograph > sunset, statue, castle, waterfall > beautiful, famous
family, woman, tourist, businessman > pack ~ unpack > suitcase, backpack, luggage, tent > heavy, small
tourist, businessman, couple, family > book/reserve ~ cancel > room, flight, cruise, table > cheap, expensive
traveller, businessman, woman, tourist > lose ~ find/discover > passport, ticket, wallet, keys > new, small
guide, pilot, captain, officer > greet/welcome > passengers, visitors, couple, family > tired, excited
porter, guide, man, traveller > carry ~ drop > suitcase, backpack, luggage, tent > heavy, large
""",
    "health": """
in the hospital/at the clinic, in the waiting room, at the surgery, in the emergency ward, at the nursing home
doctor, nurse, surgeon, student > examine/check > eyes, knee, shoulder, throat > sore, swollen
doctor, surgeon, nurse, specialist > treat ~ ignore/disregard > infection, wound, fracture, burn > serious, strange
nurse, doctor, mother, volunteer > comfort/console ~ frighten/scare > patient, baby, children, widow > sick, anxious
nurse, mother, volunteer, doctor > bandage/wrap up > arm, knee, finger, ankle > injured, swollen
patient, woman, man, grandmother > swallow/take ~ refuse/turn down > pills, medicine, syrup > bitter, expensive
doctor, specialist, dentist, pharmacist > prescribe/recommend > pills, medicine, treatment, diet > new, special
dentist, surgeon, doctor, specialist > remove/take out > tooth, splinter, tumour, bullet > small, large
""",
    "garden": """
in the garden/in the yard, in the greenhouse, behind the house, along the path, near the pond, in the park
gardener, grandfather, woman, neighbour > plant ~ dig up/uproot > roses, tulips, bushes, trees > young, red
gardener, grandfather, girl, neighbour > water > flowers, vegetables, lawn, herbs > dry, green
gardener, neighbour, son, man > trim/cut back > hedge, bushes, trees, branches > long, thick
girl, boy, grandfather, woman > pick/gather > strawberries, apples, cherries, pears > ripe, sweet
neighbour, son, gardener, boy > mow/cut > lawn, grass, meadow > green, wet
boy, gardener, grandfather, man > rake up/sweep up > leaves, branches, petals > dry, wet
man, neighbour, son, grandfather > paint ~ tear down/demolish > fence, bench, shed, gate > old, wooden
""",
    "market": """
at the market, in the shop/in the store, at the supermarket, in the shopping centre/in the mall, on the square
customer, woman, man, student > buy/purchase ~ sell > shirt, lamp, carpet, jewellery > cheap, beautiful
merchant, cashier, assistant, owner > wrap/package > present, vase, jewellery, toys > fragile, beautiful
merchant, baker, butcher, owner > weigh > sausages, grapes, cheese, fish > fresh, heavy
customer, woman, family, couple > compare > watches, lamps, phones, carpets > cheap, new
cashier, customer, merchant, guard > count > coins, banknotes, tickets, eggs > old, remaining
thief, boy, man, stranger > steal ~ return/bring back > wallet, watch, purse, necklace > expensive, small
customer, guest, tourist, couple > test/try out > camera, mattress, phone, sofa > new, expensive
""",
    "home": """
in the living room/in the lounge, upstairs, in the bathroom, in the bedroom, in the basement/in the cellar, in the hall
mother, father, son, daughter > clean/wipe ~ dirty/soil > floor, windows, table, mirror > large, wooden
father, boy, girl, grandmother > open ~ close/shut > window, door, curtains, cupboard > heavy, large
mother, daughter, son, woman > fold ~ crumple > sheets, shirts, towels, blanket > clean, soft
father, electrician, plumber, carpenter > install/put in ~ remove/take out > sink, lamp, shelf, heater > new, heavy
son, boy, girl, daughter > break ~ hide/conceal > vase, toys, mirror, glasses > beautiful, expensive
father, carpenter, son, neighbour > build/assemble ~ take apart/dismantle > bed, wardrobe, shelf, desk > wooden, large
girl, daughter, mother, grandmother > sew/stitch ~ tear/rip > dress, curtains, trousers, pillow > beautiful, soft
""",
    "animals": """
at the zoo, in the forest/in the woods, at the shelter, near the lake, on the savannah, in the cage/in the enclosure
keeper, vet, girl, volunteer > feed > lions, monkeys, elephant, parrots > hungry, wild
vet, keeper, student, biologist > examine/check > elephant, tiger, snake, eagle > sick, dangerous
hunter, ranger, policeman, soldier > chase/pursue ~ rescue/save > wolf, fox, bear, deer > wild, large
hunter, visitor, boy, girl > frighten/scare ~ calm/soothe > lion, wolf, deer, monkeys > young, restless
keeper, ranger, volunteer, boy > free/release ~ capture/catch > birds, parrots, fox, rabbits > wild, small
biologist, ranger, girl, visitor > watch/observe > birds, monkeys, bear, ducks > rare, beautiful
keeper, boy, ranger, visitor > find/discover ~ lose > cub, eggs, puppy, bone > small, white
""",
}
SYNONYMS = items("""
chef/cook, grandmother/granny, grandfather/grandpa, boy/lad, woman/lady, man/gentleman, mother/mum, father/dad
child/kid, children/kids, waiter/server, guest/diner, critic/reviewer, striker/forward, coach/trainer, team/squad
referee/umpire, fan/supporter, journalist/reporter, runner/sprinter, singer/vocalist, audience/crowd, storm/hurricane
rain/downpour, wind/gale, fog/mist, heat/heatwave, merchant/trader, apprentice/trainee, farmhand/farm worker
driver/motorist, courier/messenger, policeman/police officer, soldier/trooper, worker/labourer, manager/supervisor
director/boss, lawyer/attorney, customer/client, owner/proprietor, company/firm, assistant/aide, professor/lecturer
pupil/schoolchild, headmaster/principal, tourist/sightseer, couple/pair, traveller/voyager, captain/skipper
doctor/physician, specialist/expert, volunteer/helper, pharmacist/chemist, cashier/checkout clerk, thief/robber
stranger/unknown person, baby/infant, keeper/zookeeper, vet/veterinarian, ranger/warden, soup/broth, stew/casserole
dessert/pudding, dinner/meal, plates/dishes, pots/pans, biscuits/cookies, match/game, medal/award, trophy/cup
tournament/competition, training/practice, jersey/sports shirt, tune/melody, album/record, houses/homes, harbour/port
streets/roads, cellar/basement, fields/meadows, railway/train line, sailors/seamen, tourists/sightseers, chickens/hens
corn/maize, pony/little horse, gate/barrier, car/automobile, lorry/truck, motorbike/motorcycle, bicycle/bike
accident/crash, traffic jam/tailback, letter/note, contract/deal, plan/scheme, offer/bid, workers/staff members
list/register, telephone/phone, lift/elevator, meeting/gathering, problem/task, story/tale, exam/test
laptop/notebook computer, castle/fortress, sunset/evening sky, suitcase/trunk, backpack/rucksack, luggage/baggage
wallet/billfold, passengers/travellers, wound/injury, fracture/broken bone, pills/tablets, medicine/drug
treatment/therapy, bushes/shrubs, lawn/turf, leaves/foliage, shed/hut, present/gift, jewellery/jewels, sofa/couch
carpet/rug, carpets/rugs, phones/mobiles, curtains/drapes, cupboard/cabinet, sink/basin, heater/radiator
trousers/pants, pillow/cushion, rabbits/bunnies, cub/young animal, remote/distant, restless/uneasy, large/big
delicious/tasty, simple/plain, expensive/costly, cheap/inexpensive, dirty/filthy, sweet/sugary, famous/well-known
wet/soaked, difficult/tough/hard, important/crucial, tired/weary, short/brief, exciting/thrilling, sad/mournful
gentle/calm, long/lengthy, loud/noisy, old/ancient, hungry/starving, slow/sluggish, fast/speeding, terrible/dreadful
strange/odd/unusual, lazy/idle, secret/confidential, beautiful/lovely, small/little, sick/ill, anxious/nervous/worried
swollen/puffy, serious/severe, fragile/delicate, remaining/leftover, dangerous/deadly, rare/uncommon
clever/smart/bright, suspicious/dubious, precious/valuable, sore/painful
""")

TIMES = items("""
at dawn/at daybreak/at sunrise, at noon/at midday, in the afternoon/after lunch, in the evening/at dusk, last Sunday
at midnight/in the middle of the night, yesterday/the previous day, two days ago/the day before yesterday
last week/a week ago/seven days ago, last month/a month ago/four weeks ago, last year/a year ago/twelve months ago
on Monday/at the start of the week, on Friday/at the end of the working week, in the morning/before lunch
""")
MANNERS = items("""
carefully/with care/cautiously, quickly/rapidly/in a hurry, quietly/silently/without a sound, calmly/without any fuss
happily/cheerfully/with a smile, angrily/furiously/in anger, alone/without any help, reluctantly/unwillingly
with a friend/together with a friend, again/once more
""")
MISHAP_MANNERS = items(
    "again/once more, by chance/by accident, unexpectedly/to general surprise, in the end/eventually"
)
WEATHER_MANNERS = items("again/once more, suddenly/without warning/all of a sudden, as predicted/as forecast")
TRAITS = items(
    "friendly/kind, tired/weary, nervous/anxious/worried, experienced/skilled, polite/courteous, cheerful/jolly"
)
WEATHER_TRAITS = items("sudden/unexpected, terrible/dreadful, great/enormous")
MISHAPS = {"lose", "find", "miss", "drop", "burn", "break", "win"}  # nobody does these carefully or is busy doing them


LEADS = items(
    """
I heard that | apparently, | it is said that | my neighbour told me that | as everybody knows, | in fact,
they say that | according to the newspaper, | we noticed that | the radio reported that | if I remember correctly,
by the way, | it seems that | someone wrote to us that | as far as I know, | to be honest, | you may have heard that
the local paper says that
""",
    "|",
)
ENDS = items("I believe | as far as we know | or so they say | it seems | if you ask me | as you can imagine", "|")

IRREGULAR = items("""
break broke broken, bring brought brought, build built built, burn burnt burnt, buy bought bought, catch caught caught
cut cut cut, dig dug dug, feed fed fed, find found found, hide hid hidden, hold held held, lose lost lost
make made made, overtake overtook overtaken, put put put, read read read, sell sold sold, sew sewed sewn
shut shut shut, sing sang sung, sow sowed sown, steal stole stolen, sweep swept swept, take took taken, tear tore torn
tell told told, throw threw thrown, win won won, write wrote written
""")
IRREGULAR_PLURALS = {"children", "people", "sheep", "seamen"}
