"""Redraws the pictures of the documentation: python -m docs.pictures"""

from docs.pictures import augmentation, png, recipe_card, schedules, sharding, sweep

PICTURES = {
    "recipe_card": recipe_card,
    "schedules": schedules,
    "sharding": sharding,
    "sweep": sweep,
}

if __name__ == "__main__":
    for picture in PICTURES.values():
        facts = picture.facts()
        png.write(picture.FILE, picture.draw(facts), facts)
        print(picture.FILE)
    augmentation.write()
